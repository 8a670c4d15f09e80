// The conversation that is shown: messages are sent, answered, edited and written again.

import * as conversations from "./conversations.js";
import { MessageView } from "./message.js";
import { chatRequest } from "./requests.js";
import { factsOf, follow, forget, isWriting, notice, perform } from "./writing.js";

const byId = (id) => document.getElementById(id);
let conversation = conversations.current();
let changed = () => {}; // called when what is kept has changed
let views = new Map(); // by message
let partial = null; // keeps what has been written so far

export const currentId = () => conversation.id;

// Parts of a message of a user, as the API has them: images, then a text.
function contentOf(text, images) {
  if (!images.length) return text;
  const parts = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return text ? [...parts, { type: "text", text }] : parts;
}

export function draw() {
  const shown = conversations.branch(conversation);
  const before = views;
  views = new Map(shown.map((message) => [message, before.get(message) ?? new MessageView(message)]));
  for (const [message, view] of views) {
    const isLast = message.id === conversation.leaf;
    view.dress(conversations.versions(conversation, message), {
      show: showVersion,
      edit,
      again: message.role === "assistant" || isLast ? again : null,
    });
  }
  byId("messages").replaceChildren(...[...views.values()].map(({ item }) => item));
  byId("empty").hidden = shown.length > 0;
}

function keep(mine = conversation) {
  if (mine.isGone) return;
  if (!conversations.keep(mine))
    notice("This browser has no room for the conversation: export and delete others.", { isBad: true });
  changed();
}

export async function say(text, { images, files }) {
  const fields = { role: "user", content: contentOf(text, images) };
  if (files.length) fields.files = files;
  await answer(conversations.add(conversation, conversation.leaf, fields));
}

// Writes the answer to a message of the user: a new version, if there are some.
async function answer(question) {
  const mine = conversation;
  const request = chatRequest(conversations.branch(mine, question.id));
  const message = conversations.add(mine, question.id, { role: "assistant", content: "" });
  draw();
  const view = views.get(message);
  follow(view.item);
  partial = () => {
    message.content = view.answer.text;
    if (view.thoughts) message.thought = view.thoughts.text;
    if (!message.content && !message.thought) conversations.drop(mine, message);
    keep(mine);
  };
  conversations.choose(mine);
  keep(mine);
  const finish = (run) => {
    view.end();
    if (run) message.facts = factsOf(run);
    partial?.();
    partial = null;
    if (mine === conversation) draw();
  };
  await perform(request, view.item, (piece) => view.write(piece), { finish, again: () => again(message) });
}

function again(message) {
  if (isWriting() || !conversation.messages[message.id]) return;
  const question = message.role === "user" ? message : conversation.messages[message.parent];
  answer(question);
}

function edit(message, text) {
  if (isWriting()) return;
  const { id, parent, facts, ...rest } = message;
  const images = typeof rest.content === "string" ? [] : rest.content.flatMap((part) => part.image_url?.url ?? []);
  const made = conversations.add(conversation, parent, { ...rest, content: contentOf(text, images) });
  if (made.role === "user") {
    answer(made);
    return;
  }
  keep();
  draw();
}

function showVersion(message, label) {
  if (isWriting()) return;
  conversations.show(conversation, message);
  keep();
  draw();
  const group = views.get(message).bar.querySelector(".versions");
  const same = group.querySelector(`[aria-label="${label}"]`);
  (same.disabled ? group.querySelector("button:enabled") : same).focus();
}

// Opens what the user has written last, to be changed.
export function editLast() {
  const last = [...views.values()].findLast(({ message }) => message.role === "user");
  if (last && !isWriting()) last.edit(edit);
}

export function begin() {
  open(conversations.begin());
}

export function open(other) {
  forget();
  conversation = other;
  conversations.choose(other);
  views = new Map();
  draw();
  const stage = byId("chat");
  stage.scrollTop = stage.scrollHeight;
  changed();
}

export function remove(id) {
  conversations.remove(id);
  if (id !== conversation.id) {
    changed();
    return;
  }
  conversation.isGone = true;
  begin();
}

export function watch(whenChanged) {
  changed = whenChanged;
  addEventListener("pagehide", () => partial?.());
  addEventListener("storage", (event) => {
    // Another tab has written or deleted it; what is being written here is kept at its end.
    if (!conversations.isAbout(event, conversation) || isWriting()) return;
    conversation = conversations.load(conversation.id) ?? conversations.begin();
    views = new Map();
    draw();
    changed();
  });
  draw();
}
