// Server-sent events over fetch: unlike EventSource it can send a token and shows why it was refused.

export async function follow(path, { signal, token = "", onEvent }) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const response = await fetch(path, { signal, headers, cache: "no-store" });
  if (!response.ok) {
    const answer = await response.json().catch(() => ({}));
    throw new Error(answer.error || `${path} answers ${response.status}`);
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const [event, data] = part.split("\n");
      onEvent(event.slice("event: ".length), JSON.parse(data.slice("data: ".length)));
    }
  }
}
