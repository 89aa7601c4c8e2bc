"""A chat page of one file, which talks to the server's own API."""

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{name}}</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 0 auto; padding: 1rem; }
  .user { background: #eef2ff; border-radius: .5rem; padding: .5rem .75rem; margin: .5rem 0 .5rem 3rem; }
  .assistant { white-space: pre-wrap; padding: .5rem .75rem; margin: .5rem 0; }
  form { display: flex; gap: .5rem; position: sticky; bottom: 0; background: white; padding: .5rem 0; }
  textarea { flex: 1; font: inherit; padding: .5rem; }
  button { font: inherit; padding: .5rem 1rem; }
</style>
<h1>{{name}}</h1>
<main id="log" aria-live="polite"></main>
<form id="form">
  <textarea id="text" rows="2" aria-label="Message" placeholder="Write a message" required></textarea>
  <button id="send">Send</button>
  <button id="stop" type="button" hidden>Stop</button>
</form>
<script>
const messages = [], log = document.getElementById("log"), text = document.getElementById("text");
const send = document.getElementById("send"), stop = document.getElementById("stop");
let running = null;
function show(role, content) {
  const node = document.createElement("div");
  node.className = role;
  node.textContent = content;
  log.append(node);
  node.scrollIntoView();
  return node;
}
document.getElementById("form").addEventListener("submit", async event => {
  event.preventDefault();
  const content = text.value.trim();
  if (!content || running) return;
  messages.push({ role: "user", content });
  show("user", content);
  text.value = "";
  const node = show("assistant", "");
  running = new AbortController();
  send.hidden = true; stop.hidden = false;
  try {
    const body = JSON.stringify({ messages, stream: true, temperature: 0 });
    const answer = await fetch("v1/chat/completions",
      { method: "POST", headers: { "content-type": "application/json" }, body, signal: running.signal });
    if (!answer.ok) throw new Error((await answer.json()).error.message);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const events = (rest + value).split("\\n\\n");
      rest = events.pop();
      for (const line of events) {
        if (line === "data: [DONE]") continue;
        const chunk = JSON.parse(line.slice(6));
        if (chunk.error) throw new Error(chunk.error.message);
        node.textContent += chunk.choices[0]?.delta.content ?? "";
      }
    }
  } catch (error) {
    if (error.name !== "AbortError") node.textContent += " [" + error.message + "]";
  }
  messages.push({ role: "assistant", content: node.textContent });
  running = null;
  send.hidden = false; stop.hidden = true;
});
stop.addEventListener("click", () => running?.abort());
text.addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    document.getElementById("form").requestSubmit();
  }
});
</script>
"""
