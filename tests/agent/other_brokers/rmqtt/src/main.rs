//! RMQTT on loopback: `rmqtt-for-tests PORT PLUGINS`, where PLUGINS is the directory with the
//! settings of its plugins.

use rmqtt::context::ServerContext;
use rmqtt::net::{Builder, Result};
use rmqtt::server::MqttServer;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let port: u16 = arguments.next().expect("PORT").parse()?;
    let plugins = arguments.next().expect("PLUGINS");
    let context = ServerContext::new()
        .busy_check_enable(false) // it would refuse clients on a busy machine
        .plugins_config_dir(plugins)
        .build()
        .await;
    rmqtt_retainer::register(&context, true, false).await?;
    rmqtt_shared_subscription::register(&context, true, false).await?;
    rmqtt_sys_topic::register(&context, true, false).await?;
    rmqtt_http_api::register(&context, true, false).await?;
    let listener = Builder::new()
        .name("tcp")
        .laddr(([127, 0, 0, 1], port).into())
        .allow_anonymous(true)
        .bind()?
        .tcp()?;
    MqttServer::new(context).listener(listener).build().run().await
}
