// The page: a chat or a text, written by the model, with speculation made visible.

import { get, stream } from "./api.js";
import { Run, show } from "./figures.js";
import { Paper } from "./paper.js";
import * as pictures from "./pictures.js";

const byId = (id) => document.getElementById(id);
const STORE = "nextn-page";
const state = {
  mode: "chat",
  chat: [], // messages, as sent to the server
  running: null, // an AbortController
  last: null, // {path, body, text}: what can be written again
  sees: false, // whether the model takes images
};

// The body of a request

function number(id) {
  const value = byId(id).valueAsNumber;
  return Number.isFinite(value) ? value : undefined;
}

function speculation() {
  if (!byId("speculate").checked) return { off: true };
  const boxes = [...document.querySelectorAll("#drafters input")];
  const chosen = boxes.filter((box) => box.checked).map((box) => box.value);
  return {
    types: chosen.length === boxes.length ? undefined : chosen.length ? chosen : ["none"],
    n_max: number("n-max"),
  };
}

function settings() {
  return {
    stream: true,
    return_sources: true,
    seed: number("seed") ?? Math.floor(Math.random() * 2 ** 31),
    temperature: number("temperature"),
    speculative: speculation(),
  };
}

function chatRequest(messages) {
  const system = byId("system").value.trim();
  const all = system ? [{ role: "system", content: system }, ...messages] : messages;
  const body = { ...settings(), messages: all, max_tokens: number("max-tokens") };
  return { path: "v1/chat/completions", body };
}

function textRequest(prompt) {
  return { path: "completion", body: { ...settings(), prompt, n_predict: number("max-tokens") ?? -1 } };
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

async function write(request, into) {
  const run = new Run();
  const began = performance.now();
  for await (const event of stream(request.path, named(request.body), state.running.signal)) {
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

// The conversation

// Parts of a message of a user, as the API has them: images, then a text.
function contentOf(text, images) {
  if (!images.length) return text;
  const parts = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return text ? [...parts, { type: "text", text }] : parts;
}

function addContent(role, content) {
  const parts = typeof content === "string" ? [{ type: "text", text: content }] : content;
  const text = parts.filter(({ type }) => type === "text").map((part) => part.text).join("\n");
  const { item, answer } = addMessage(role, text);
  const images = parts.filter(({ type }) => type === "image_url");
  answer.prepend(...images.map((part) => pictures.picture(part.image_url.url)));
  return { item, answer };
}

function addMessage(role, text) {
  const item = document.createElement("li");
  item.className = `message ${role}`;
  const answer = document.createElement("div");
  answer.className = "answer";
  if (text) answer.textContent = text;
  item.append(answer);
  byId("messages").append(item);
  byId("empty").hidden = true;
  return { item, answer };
}

function writer(item, answer) {
  const paper = new Paper(answer);
  let thoughts = null;
  const into = ({ text, thought, provenance }) => {
    if (thought) {
      thoughts ??= new Paper(thoughtsOf(item, answer));
      thoughts.write(thought, provenance);
    } else {
      paper.write(text, provenance);
    }
    follow(item);
  };
  return { into, paper, thought: () => thoughts?.text ?? "" };
}

function thoughtsOf(item, answer) {
  const details = document.createElement("details");
  details.className = "thoughts";
  details.open = true;
  const summary = document.createElement("summary");
  summary.textContent = "Thoughts";
  const body = document.createElement("div");
  body.className = "answer";
  details.append(summary, body);
  item.insertBefore(details, answer);
  return body;
}

function follow(item) {
  const stage = item.closest(".stage");
  const below = stage.scrollHeight - stage.scrollTop - stage.clientHeight;
  if (below < 160) stage.scrollTop = stage.scrollHeight;
}

function facts(item, text, run) {
  const line = document.createElement("p");
  line.className = "facts";
  if (run?.tokens) line.append(`${run.tokens} tokens · ${run.speed.toFixed(1)} tokens/s`);
  const copy = document.createElement("button");
  copy.type = "button";
  copy.textContent = "Copy";
  copy.onclick = () => navigator.clipboard?.writeText(text);
  line.append(copy);
  item.append(line);
}

async function perform(request, item, answer) {
  const { into, paper, thought } = writer(item, answer);
  busy(true, item);
  try {
    const run = await write(request, into);
    show(run);
    facts(item, paper.text, run);
    state.last = { ...request, text: thought() + paper.text, run };
    byId("verify").disabled = request.body.speculative.off === true;
  } catch (error) {
    fail(error, item);
  } finally {
    paper.end();
    busy(false, item);
    explainIdle();
  }
  return paper.text;
}

function fail(error, item) {
  const line = document.createElement("p");
  line.className = error.name === "AbortError" ? "facts" : "error";
  line.textContent = error.name === "AbortError" ? "stopped" : error.message;
  item.append(line);
}

function busy(is, item) {
  if (!is) state.running = null;
  else state.running = new AbortController();
  item?.classList.toggle("busy", is);
  byId("send").textContent = is ? "Stop" : "Send";
  if (is) {
    byId("verify").disabled = true;
    verdict("");
  }
}

async function sayInChat(content) {
  addContent("user", content);
  state.chat.push({ role: "user", content });
  const { item, answer } = addMessage("assistant");
  follow(item);
  const written = await perform(chatRequest(state.chat), item, answer);
  if (written) state.chat.push({ role: "assistant", content: written });
  else state.chat.pop();
  remember();
}

async function continueText(text) {
  const paper = byId("paper");
  paper.replaceChildren();
  const given = document.createElement("span");
  given.textContent = text;
  const answer = document.createElement("span");
  paper.append(given, answer);
  await perform(textRequest(text), paper, answer);
}

async function verify() {
  const { path, body, text, run } = state.last;
  busy(true);
  verdict("writing it again…");
  let again = "";
  const into = (piece) => (again += piece.thought ?? piece.text);
  into.quiet = true;
  try {
    const plain = await write({ path, body: { ...body, speculative: { off: true } } }, into);
    const same = again === text;
    const ratio = plain.speed ? run.speed / plain.speed : 0;
    verdict(
      same
        ? `Identical. ${run.speed.toFixed(0)} tokens/s with speculation, ` +
          `${plain.speed.toFixed(0)} without: ${ratio.toFixed(2)} times.`
        : "The texts differ. That is a bug: please report it.",
      !same,
    );
  } catch (error) {
    verdict(error.name === "AbortError" ? "stopped" : error.message, error.name !== "AbortError");
  } finally {
    busy(false);
    byId("verify").disabled = false;
  }
}

function verdict(text, isBad = false) {
  byId("verdict").textContent = text;
  byId("verdict").classList.toggle("bad", isBad);
}

// The page itself

function choose(mode) {
  state.mode = mode;
  for (const name of ["chat", "text"]) {
    byId(name).hidden = name !== mode;
    byId(`tab-${name}`).setAttribute("aria-selected", name === mode);
  }
  byId("system-label").hidden = mode !== "chat";
  offerImages();
  byId("prompt").placeholder = mode === "chat" ? "Message" : "Text to go on with";
  byId("prompt").focus();
}

const seesNow = () => state.sees && state.mode === "chat";

function offerImages() {
  byId("image").hidden = !seesNow();
  byId("images").hidden = !seesNow() || !pictures.count();
}

function begin() {
  state.running?.abort();
  pictures.take();
  state.chat = [];
  byId("messages").replaceChildren();
  byId("paper").replaceChildren();
  byId("empty").hidden = false;
  state.last = null;
  byId("verify").disabled = true;
  verdict("");
  show(new Run());
  remember();
  byId("prompt").focus();
}

function remember() {
  try {
    localStorage.setItem(STORE, JSON.stringify({ chat: state.chat }));
  } catch { /* private windows may refuse: nothing is lost but the memory */ }
}

function recall() {
  let chat = [];
  try {
    chat = JSON.parse(localStorage.getItem(STORE))?.chat ?? [];
  } catch { /* damaged: begin anew */ }
  for (const { role, content } of chat) {
    state.chat.push({ role, content });
    if (role === "user") {
      addContent(role, content);
      continue;
    }
    const { item, answer } = addMessage(role);
    new Paper(answer).write(content);
    facts(item, content);
  }
}

function submit(event) {
  event?.preventDefault();
  if (state.running) return state.running.abort();
  const prompt = byId("prompt");
  const text = state.mode === "chat" ? prompt.value.trim() : prompt.value;
  const images = seesNow() ? pictures.take() : [];
  if (!text && !images.length) return;
  if (state.mode === "chat") {
    prompt.value = "";
    grow();
  }
  return state.mode === "chat" ? sayInChat(contentOf(text, images)) : continueText(text);
}

function grow() {
  const prompt = byId("prompt");
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
}

function onKey(event) {
  if (event.isComposing) return;
  if (event.key === "Escape" && state.running) state.running.abort();
  else if (event.key === "k" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    begin();
  } else if (event.key === "Enter" && !event.shiftKey && event.target === byId("prompt")) {
    event.preventDefault();
    submit();
  }
}

function offer(types) {
  const boxes = types.map((type) => {
    const label = document.createElement("label");
    label.className = "row";
    const box = document.createElement("input");
    box.type = "checkbox";
    box.value = type;
    box.checked = true;
    const idle = document.createElement("span");
    idle.className = "idle";
    label.append(box, ` ${type}`, idle);
    return label;
  });
  byId("drafters").replaceChildren(...boxes);
  byId("speculate").disabled = !types.length;
  if (!types.length) byId("speculate").checked = false;
}

// Why the policy does without a drafter that was loaded: the server says so after some steps.
async function explainIdle() {
  try {
    const { drafters = [] } = await get(propsPath());
    for (const label of document.querySelectorAll("#drafters label")) {
      const name = label.querySelector("input").value;
      const reason = drafters.find((each) => each.name === name)?.idle;
      label.querySelector(".idle").textContent = reason ? `idle: ${reason}` : "";
    }
  } catch { /* the next answer asks again */ }
}

// A server of several models: each request names the one that is chosen.
const chosenModel = () => byId("models").value;

const propsPath = () =>
  chosenModel() ? `props?model=${encodeURIComponent(chosenModel())}` : "props";

const named = (body) => (chosenModel() ? { ...body, model: chosenModel() } : body);

async function offerModels() {
  const { data } = await get("v1/models");
  const isLoaded = ({ status }) => status.value === "loaded";
  byId("models").replaceChildren(...data.map(({ id }) => new Option(id)));
  byId("models").value = (data.find(isLoaded) ?? data[0])?.id ?? "";
  byId("models").hidden = false;
}

async function connect() {
  try {
    let props = await get(propsPath());
    if (props.role === "router") {
      await offerModels();
      props = await get(propsPath());
    }
    byId("model").textContent = props.model_alias || (props.model_path ?? "").split(/[/\\]/).pop();
    byId("model").title = props.model_path || "";
    offer(props.speculative_types ?? []);
    state.sees = Boolean(props.modalities?.vision);
    const canChat = Boolean(props.chat_template);
    byId("tab-chat").disabled = !canChat;
    if (!canChat) byId("tab-chat").title = "this model has no chat template";
    choose(canChat && props.is_chat_model ? "chat" : "text");
  } catch (error) {
    byId("model").textContent = error.message;
    byId("model").classList.add("bad");
    if (error.status === 503 || error.status === undefined) setTimeout(connect, 1000);
    return;
  }
  byId("model").classList.remove("bad");
}

byId("composer").addEventListener("submit", submit);
byId("image").onclick = () => byId("file").click();
pictures.watch({
  area: document.body,
  prompt: byId("prompt"),
  input: byId("file"),
  shown: byId("images"),
  mayAdd: seesNow,
});
byId("prompt").addEventListener("input", grow);
document.addEventListener("keydown", onKey);
byId("new").onclick = begin;
byId("models").onchange = connect;
byId("verify").onclick = verify;
byId("tab-chat").onclick = () => choose("chat");
byId("tab-text").onclick = () => choose("text");
byId("tint").onchange = (e) => document.body.classList.toggle("tinted", e.target.checked);
byId("rejected").onchange = (e) => document.body.classList.toggle("show-rejected", e.target.checked);
byId("toggle-panel").onclick = (e) => {
  const hidden = (byId("panel").hidden = !byId("panel").hidden);
  e.target.setAttribute("aria-expanded", !hidden);
};
document.body.classList.add("tinted");
if (matchMedia("(max-width: 45rem)").matches) byId("toggle-panel").click();
recall();
connect();
