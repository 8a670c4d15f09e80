// The page: a chat or a text, written by the model, with speculation made visible.

import * as attachments from "./attachments.js";
import * as chat from "./chat.js";
import { copyButton } from "./clipboard.js";
import * as drafting from "./drafting.js";
import { Run, show } from "./figures.js";
import * as models from "./models.js";
import { Paper } from "./paper.js";
import { textRequest } from "./requests.js";
import * as settings from "./settings.js";
import * as sidebar from "./sidebar.js";
import { factsOf, follow, forget, isWriting, perform, stop, verify } from "./writing.js";

const byId = (id) => document.getElementById(id);
const RETRY_MS = 1000;
const state = { mode: "chat", sees: false }; // whether the model takes images
const isChat = () => state.mode === "chat";

function choose(mode) {
  state.mode = mode;
  for (const name of ["chat", "text"]) {
    const tab = byId(`tab-${name}`);
    byId(name).hidden = name !== mode;
    tab.setAttribute("aria-selected", name === mode);
    tab.tabIndex = name === mode ? 0 : -1;
  }
  for (const id of ["system-label", "attach", "new"]) byId(id).hidden = mode !== "chat";
  byId("attached").hidden = mode !== "chat" || !byId("attached").childElementCount;
  byId("prompt").placeholder = isChat() ? "Message" : "Text to go on with";
  byId("prompt").setAttribute("aria-label", byId("prompt").placeholder);
  byId("prompt").focus();
}

async function continueText(text) {
  const place = byId("paper");
  const given = document.createElement("span");
  given.textContent = text;
  const answer = document.createElement("span");
  place.replaceChildren(given, answer);
  const paper = new Paper(answer);
  const into = (piece) => {
    paper.write(piece.text, piece.provenance);
    follow(place);
  };
  const finish = (run) => {
    const line = document.createElement("p");
    line.className = "facts";
    line.append(factsOf(run), copyButton(() => text + paper.text));
    place.append(line);
  };
  await perform(textRequest(text), place, into, { finish, again: () => continueText(text) });
}

function begin() {
  attachments.take();
  show(new Run());
  chat.begin();
  byId("prompt").focus();
}

function submit(event) {
  event?.preventDefault();
  if (isWriting()) return stop();
  const prompt = byId("prompt");
  const text = isChat() ? prompt.value.trim() : prompt.value;
  const added = isChat() ? attachments.take() : { images: [], files: [] };
  if (!text && !added.images.length && !added.files.length) return undefined;
  if (!isChat()) return continueText(text);
  prompt.value = "";
  grow();
  return chat.say(text, added);
}

function grow() {
  const prompt = byId("prompt");
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
}

function onKey(event) {
  if (event.isComposing || event.defaultPrevented) return;
  const isPrompt = event.target === byId("prompt");
  const isCommand = event.ctrlKey || event.metaKey;
  if (event.key === "Escape") {
    if (isWriting()) stop();
    else closeDrawers();
  } else if (event.key === "k" && isCommand) {
    event.preventDefault();
    choose(byId("tab-chat").disabled ? "text" : "chat");
    begin();
  } else if (event.key === "Enter" && !event.shiftKey && isPrompt) {
    event.preventDefault();
    submit();
  } else if (event.key === "ArrowUp" && isPrompt && isChat() && !byId("prompt").value) {
    event.preventDefault();
    chat.editLast();
  } else if (event.target.role === "tab" && ["ArrowLeft", "ArrowRight"].includes(event.key)) {
    const other = byId(event.target.id === "tab-chat" ? "tab-text" : "tab-chat");
    if (other.disabled) return;
    other.click();
    other.focus();
  }
}

// The list and the panel stand beside the text, or over it where there is no room.

const DRAWERS = [
  { id: "list", narrow: matchMedia("(max-width: 60rem)") },
  { id: "panel", narrow: matchMedia("(max-width: 45rem)") },
];

function open(id, is) {
  byId(id).hidden = !is;
  byId(`toggle-${id}`).setAttribute("aria-expanded", is);
}

function closeDrawers() {
  for (const { id, narrow } of DRAWERS) {
    if (!narrow.matches || byId(id).hidden) continue;
    const hadFocus = byId(id).contains(document.activeElement);
    open(id, false);
    if (hadFocus) byId(`toggle-${id}`).focus();
  }
}

function watchDrawers() {
  for (const { id, narrow } of DRAWERS) {
    const arrange = () => open(id, !narrow.matches && settings.recall(id) !== false);
    byId(`toggle-${id}`).onclick = () => {
      const is = byId(id).hidden;
      if (is) closeDrawers();
      open(id, is);
      if (!narrow.matches) settings.remember(id, is);
    };
    narrow.addEventListener("change", arrange);
    arrange();
  }
}

async function connect() {
  try {
    const props = await models.props();
    byId("model").textContent = props.model_alias || (props.model_path ?? "").split(/[/\\]/).pop();
    byId("model").title = props.model_path || "";
    drafting.offer(props.speculative_types ?? []);
    state.sees = Boolean(props.modalities?.vision);
    byId("attach").title = state.sees
      ? "Add files of text or images; or drop or paste them"
      : "Add files of text; or drop or paste them";
    const canChat = Boolean(props.chat_template);
    byId("tab-chat").disabled = !canChat;
    if (!canChat) byId("tab-chat").title = "this model has no chat template";
    const usual = props.is_chat_model ? "chat" : "text";
    choose(canChat ? settings.recall("mode") ?? usual : "text");
  } catch (error) {
    byId("model").textContent = error.message;
    byId("model").classList.add("bad");
    if (error.status === 503 || error.status === undefined) setTimeout(connect, RETRY_MS);
    return;
  }
  byId("model").classList.remove("bad");
}

function watchSettings() {
  settings.watch();
  for (const [id, name] of [["tint", "tinted"], ["rejected", "show-rejected"]]) {
    const apply = () => document.body.classList.toggle(name, byId(id).checked);
    byId(id).addEventListener("change", apply);
    apply();
  }
  byId("reset").onclick = settings.reset;
}

byId("composer").addEventListener("submit", submit);
byId("attach").onclick = () => byId("file").click();
attachments.watch({
  area: document.body,
  prompt: byId("prompt"),
  input: byId("file"),
  shown: byId("attached"),
  mayAdd: isChat,
  sees: () => state.sees,
});
byId("prompt").addEventListener("input", grow);
document.addEventListener("keydown", onKey);
byId("new").onclick = begin;
byId("verify").onclick = verify;
for (const mode of ["chat", "text"]) {
  byId(`tab-${mode}`).onclick = () => {
    settings.remember("mode", mode);
    choose(mode);
  };
}
watchSettings();
watchDrawers();
models.watch(() => {
  forget();
  connect();
});
chat.watch(sidebar.draw);
sidebar.watch(() => {
  choose("chat");
  closeDrawers();
});
connect();
