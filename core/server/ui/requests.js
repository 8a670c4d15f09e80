// Bodies of requests, as the panel is set, and what their streams bring.

import { stream } from "./api.js";
import { fileText } from "./attachments.js";
import { textOf } from "./conversations.js";
import * as drafting from "./drafting.js";
import { Run, show } from "./figures.js";
import { named } from "./models.js";
import { number } from "./settings.js";

const byId = (id) => document.getElementById(id);

function shared() {
  return {
    stream: true,
    return_sources: true,
    seed: number("seed") ?? Math.floor(Math.random() * 2 ** 31),
    temperature: number("temperature"),
    top_p: number("top-p"),
    speculative: drafting.wanted(),
  };
}

export function chatRequest(messages) {
  const system = byId("system").value.trim();
  const all = messages.map(({ role, content, files }) => ({ role, content: withFiles(content, files) }));
  if (system) all.unshift({ role: "system", content: system });
  const body = { ...shared(), messages: all, max_tokens: number("max-tokens") };
  return { path: "v1/chat/completions", body };
}

export function textRequest(prompt) {
  return { path: "completion", body: { ...shared(), prompt, n_predict: number("max-tokens") ?? -1 } };
}

// Files come before what is asked about them.
function withFiles(content, files = []) {
  if (!files.length) return content;
  const text = [...files.map(fileText), textOf({ content })].filter(Boolean).join("\n\n");
  if (typeof content === "string") return text;
  return [...content.filter(({ type }) => type !== "text"), { type: "text", text }];
}

// Events of either endpoint, as one shape

function tokensOf(event) {
  const { sources = [], rejected = [] } = event.choices?.[0] ?? event;
  return sources.map((source, i) => ({ source, rejected: rejected[i] ?? [] }));
}

// A piece of text that several tokens may have made: the last one's source, all that was rejected.
function* pieces(event, tokens) {
  const provenance = {
    source: tokens.at(-1)?.source,
    rejected: tokens.flatMap((token) => token.rejected),
  };
  const choice = event.choices?.[0];
  const { content, reasoning_content: thought } = choice?.delta ?? event;
  if (thought) yield { thought, provenance };
  if (content) yield { text: content, provenance };
}

// `into` gets the pieces. The figures in the panel follow, unless `into.quiet`.
export async function write(request, into, signal) {
  const run = new Run();
  const began = performance.now();
  for await (const event of stream(request.path, named(request.body), signal)) {
    const tokens = tokensOf(event);
    for (const token of tokens) run.token(token);
    for (const piece of pieces(event, tokens)) into(piece);
    if (event.timings) run.timings = event.timings;
    if (!into.quiet) paint(run);
  }
  run.ms = performance.now() - began;
  return run;
}

let painting = null;
function paint(run) {
  painting ??= requestAnimationFrame(() => {
    painting = null;
    show(run);
  });
}
