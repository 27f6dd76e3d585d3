// The server this page came from: its token, its answers, its stream of votes. Nothing else is ever asked.

const base = new URL("../", document.baseURI);
const TOKEN = "robust-token";

// `robust serve --page` prints an address that ends in #token=..., a part that browsers send to nobody.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  sessionStorage.setItem(TOKEN, given);
  history.replaceState(null, "", location.pathname + location.search);
}

export const address = base.href.replace(/\/$/, "");

export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;

export const useToken = (token) => sessionStorage.setItem(TOKEN, token.trim());

// An answer that is not what was asked for: its status, and the server's sentence about it.
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function send(path, options) {
  const headers = hasToken() ? { Authorization: `Bearer ${sessionStorage.getItem(TOKEN)}` } : {};
  let response;
  try {
    response = await fetch(new URL(path, base), { ...options, headers: { ...headers, ...options.headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The server does not answer. Is it still running?");
  }
  if (response.ok) return response;
  const text = await response.text();
  let sentence = `The server answered ${response.status}.`;
  try {
    sentence = JSON.parse(text).error.message;
  } catch {
    // not every refusal has a body
  }
  throw new Refused(response.status, sentence);
}

export async function get(path) {
  return (await send(path, { method: "GET" })).json();
}

export async function post(path, body, options = {}) {
  return (await send(path, { method: "POST", body, ...options })).json();
}

// The events of an answer that is streamed: {name, text}, where the text is a JSON document as the server wrote it.
// EventSource cannot send a token, so the stream is read by hand.
export async function* stream(path, body, signal) {
  const response = await send(path, { method: "POST", body, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n");
      const field = (name) => lines.filter((line) => line.startsWith(`${name}: `)).map((line) => line.slice(name.length + 2));
      const text = field("data").join("\n");
      if (text) yield { name: field("event")[0] ?? "message", text };
    }
  }
}
