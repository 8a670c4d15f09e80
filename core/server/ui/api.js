// Requests to the server that this page came from. The key lives as long as the tab.

const KEY = "nextn-key";

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers() {
  const key = sessionStorage.getItem(KEY);
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

async function failure(response) {
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message ?? message;
  } catch { /* not JSON: the status has to do */ }
  return new ApiError(response.status, message);
}

function askKey() {
  const dialog = document.getElementById("key-dialog");
  const input = document.getElementById("key");
  input.value = "";
  dialog.showModal();
  return new Promise((done) =>
    dialog.addEventListener("close", () => {
      sessionStorage.setItem(KEY, input.value.trim());
      done();
    }, { once: true }));
}

async function send(path, options) {
  for (;;) {
    const response = await fetch(path, { ...options, headers: headers() });
    if (response.ok) return response;
    if (response.status !== 401) throw await failure(response);
    await askKey();
  }
}

export async function get(path) {
  return (await send(path, {})).json();
}

// Every event of a stream as an object. An error event raises, like an error status.
export async function* stream(path, body, signal) {
  const response = await send(path, { method: "POST", body: JSON.stringify(body), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      const data = line.slice(6).trim();
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(event.error.code, event.error.message);
      yield event;
    }
  }
}
