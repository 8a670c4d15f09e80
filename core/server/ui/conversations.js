// Conversations, kept in this browser alone. Each is a tree: what was edited or written again stays
// beside its other versions, and `leaf` says which branch is shown.

const PREFIX = "nextn-conversation-";
const CURRENT = "nextn-current"; // of this tab
const TITLE = 60; // characters

export function begin() {
  return { id: crypto.randomUUID?.() ?? String(Math.random()).slice(2), changed: 0, n: 0, leaf: null, messages: {} };
}

// The messages of the branch that is shown, the first one first.
export function branch(conversation, leaf = conversation.leaf) {
  const found = [];
  for (let at = leaf; at !== null; at = conversation.messages[at].parent)
    found.unshift(conversation.messages[at]);
  return found;
}

// All versions of a message, itself among them, the oldest first.
export function versions(conversation, message) {
  return Object.values(conversation.messages)
    .filter(({ parent }) => parent === message.parent)
    .sort((a, b) => a.id - b.id);
}

// `fields`: role, content, and what else is to be kept.
export function add(conversation, parent, fields) {
  const id = conversation.n;
  conversation.n += 1;
  conversation.messages[id] = { id, parent, ...fields };
  conversation.leaf = id;
  return conversation.messages[id];
}

// Shows this version, down to what was written last behind it.
export function show(conversation, message) {
  let leaf = message.id;
  for (;;) {
    const next = Object.values(conversation.messages).filter(({ parent }) => parent === leaf);
    if (!next.length) break;
    leaf = Math.max(...next.map(({ id }) => id));
  }
  conversation.leaf = leaf;
}

export function drop(conversation, message) {
  delete conversation.messages[message.id];
  conversation.leaf = message.parent;
}

export function textOf({ content }) {
  if (typeof content === "string") return content;
  return content.filter(({ type }) => type === "text").map(({ text }) => text).join("\n");
}

export function titleOf(conversation) {
  const first = Object.values(conversation.messages).find(({ role }) => role === "user");
  const text = first ? textOf(first).trim().split("\n")[0] : "";
  return text.slice(0, TITLE) || (first?.files?.[0]?.name ?? "New conversation");
}

// Returns whether there was room.
export function keep(conversation, changed = Date.now()) {
  conversation.changed = changed;
  try {
    localStorage.setItem(PREFIX + conversation.id, JSON.stringify(conversation));
    return true;
  } catch {
    return false;
  }
}

// Whether an event of the browser's store is about this conversation.
export const isAbout = ({ key }, { id }) => key === PREFIX + id;

export function remove(id) {
  localStorage.removeItem(PREFIX + id);
}

export function load(id) {
  try {
    return checked(JSON.parse(localStorage.getItem(PREFIX + id)));
  } catch {
    return null; // missing or damaged
  }
}

// Throws unless all of it can be shown.
function checked(conversation) {
  const { id, changed, n, leaf, messages } = conversation;
  const isThere = (key) => key === null || Object.hasOwn(messages, key);
  const isText = (...all) => all.every((each) => typeof each === "string");
  const isContent = (content) => isText(content) ||
    content.every(({ type, text, image_url }) => isText(type === "image_url" ? image_url.url : text));
  const isWhole = ([key, { id: own, parent, role, content, thought = "", facts = "", files = [] }]) =>
    Number(key) === own && own < n && isThere(parent) && (parent === null || parent < own) &&
    ["user", "assistant"].includes(role) && isContent(content) && isText(thought, facts) &&
    files.every(({ name, text }) => isText(name, text));
  if (typeof id !== "string" || !Number.isFinite(changed) || !Number.isInteger(n) || !isThere(leaf))
    throw new Error("not a conversation");
  if (!Object.entries(messages).every(isWhole)) throw new Error("a message is damaged");
  return conversation;
}

// Keeps the conversations of a file that was exported; those that are here already are replaced.
export function importAll(text) {
  let found = null;
  try {
    found = JSON.parse(text).map(checked);
  } catch {
    throw new Error("these are no conversations that were exported here");
  }
  for (const conversation of found)
    if (!keep(conversation, conversation.changed)) throw new Error("this browser has no room for them");
}

// All, the latest first; those in which each of these words occurs.
export function list(words = "") {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return stored()
    .filter((conversation) => {
      const all = textsOf(conversation).toLowerCase();
      return wanted.every((word) => all.includes(word));
    })
    .sort((a, b) => b.changed - a.changed);
}

function stored() {
  try {
    const names = Object.keys(localStorage).filter((name) => name.startsWith(PREFIX));
    return names.map((name) => load(name.slice(PREFIX.length))).filter(Boolean);
  } catch {
    return []; // private windows may refuse
  }
}

function textsOf(conversation) {
  const messages = Object.values(conversation.messages);
  return messages.flatMap((each) => [textOf(each), ...(each.files ?? []).map(({ name }) => name)]).join("\n");
}

// Of this tab, also after a reload.
export function current() {
  try {
    const id = sessionStorage.getItem(CURRENT);
    return (id && load(id)) || begin();
  } catch {
    return begin();
  }
}

export function choose(conversation) {
  try {
    sessionStorage.setItem(CURRENT, conversation.id);
  } catch { /* then a reload begins anew */ }
}

// The branch that is shown, to be read by people.
export function asMarkdown(conversation) {
  const parts = branch(conversation).map((message) => {
    const files = (message.files ?? []).map(({ name }) => `(with the file ${name})\n\n`).join("");
    return `## ${message.role === "user" ? "User" : "Assistant"}\n\n${files}${textOf(message)}\n`;
  });
  return `# ${titleOf(conversation)}\n\n${parts.join("\n")}`;
}

export function download(name, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
