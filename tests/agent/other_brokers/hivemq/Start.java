import com.hivemq.embedded.EmbeddedExtension;
import com.hivemq.embedded.EmbeddedHiveMQ;
import com.hivemq.extension.sdk.api.ExtensionMain;
import com.hivemq.extension.sdk.api.auth.SimpleAuthenticator;
import com.hivemq.extension.sdk.api.parameter.ExtensionStartInput;
import com.hivemq.extension.sdk.api.parameter.ExtensionStartOutput;
import com.hivemq.extension.sdk.api.parameter.ExtensionStopInput;
import com.hivemq.extension.sdk.api.parameter.ExtensionStopOutput;
import com.hivemq.extension.sdk.api.services.Services;
import java.nio.file.Files;
import java.nio.file.Path;

/** Starts HiveMQ CE in a directory that has conf/config.xml; every client is accepted. */
public class Start {
    static class AllowAll implements ExtensionMain {
        public void extensionStart(ExtensionStartInput input, ExtensionStartOutput output) {
            SimpleAuthenticator all = (in, out) -> out.authenticateSuccessfully();
            Services.securityRegistry().setAuthenticatorProvider(provider -> all);
        }

        public void extensionStop(ExtensionStopInput input, ExtensionStopOutput output) {
        }
    }

    public static void main(String[] arguments) throws Exception {
        Path directory = Path.of(arguments[0]);
        for (String name : new String[] {"data", "extensions"}) {
            Files.createDirectories(directory.resolve(name));
        }
        EmbeddedExtension open = EmbeddedExtension.builder()
            .withId("allow-all")
            .withName("allow all")
            .withVersion("1")
            .withAuthor("hansa")
            .withPriority(0)
            .withStartPriority(0)
            .withExtensionMain(new AllowAll())
            .build();
        EmbeddedHiveMQ broker = EmbeddedHiveMQ.builder()
            .withConfigurationFolder(directory.resolve("conf"))
            .withDataFolder(directory.resolve("data"))
            .withExtensionsFolder(directory.resolve("extensions"))
            .withEmbeddedExtension(open)
            .build();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> broker.stop().join()));
        broker.start().join();
        Thread.currentThread().join();
    }
}
