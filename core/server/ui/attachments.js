// What the next message will have beside its text: images, and files of text. They are chosen,
// dropped or pasted, and shown above the prompt.

const IMAGE = /^image\/(png|jpeg|webp|gif|bmp)$/;
const LARGEST = 1 << 20; // bytes of a file of text
const waiting = []; // {uri} or {name, text}, in order
let place = null; // where they are shown
let seesNow = () => false;

export function picture(uri) {
  const image = document.createElement("img");
  image.src = uri;
  image.alt = "image";
  return image;
}

// A file as it is shown in a message: its name, and its text once that is opened.
export function fileView({ name, text }) {
  const details = document.createElement("details");
  details.className = "file";
  const summary = document.createElement("summary");
  summary.textContent = name;
  const body = document.createElement("pre");
  body.textContent = text;
  details.append(summary, body);
  return details;
}

// As the model reads it.
export function fileText({ name, text }) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map(({ length }) => length));
  const fence = "`".repeat(longest + 1);
  return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}

function redraw() {
  const shown = waiting.map((each, i) => {
    const button = document.createElement("button");
    button.type = "button";
    const name = each.name ?? "this image";
    button.title = `Remove ${name}`;
    button.setAttribute("aria-label", button.title);
    button.append(each.uri ? picture(each.uri) : `${name} ×`);
    button.onclick = () => {
      waiting.splice(i, 1);
      redraw();
    };
    return button;
  });
  place.replaceChildren(...shown);
  place.hidden = !shown.length;
}

function complain(text) {
  const line = document.createElement("p");
  line.className = "error";
  line.setAttribute("role", "alert");
  line.textContent = text;
  place.append(line);
  place.hidden = false;
}

function dataUri(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(file);
  });
}

async function textIn(file) {
  if (file.size > LARGEST) throw new Error(`it is larger than ${LARGEST >> 20} MiB`);
  const bytes = await file.arrayBuffer();
  let text = null;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch { /* said below */ }
  if (text === null || text.includes("\0")) throw new Error("it is not a text in UTF-8");
  return text;
}

async function read(file) {
  if (!IMAGE.test(file.type)) return { name: file.name, text: await textIn(file) };
  if (!seesNow()) throw new Error("this model does not see images");
  return { uri: await dataUri(file) };
}

async function add(files) {
  const failures = [];
  for (const file of files) {
    try {
      waiting.push(await read(file));
    } catch (error) {
      failures.push(`${file.name}: ${error.message}`);
    }
  }
  redraw();
  failures.forEach(complain);
}

// All that wait, which then do so no longer.
export function take() {
  const taken = waiting.splice(0);
  redraw();
  return {
    images: taken.flatMap(({ uri }) => uri ?? []),
    files: taken.filter(({ text }) => text !== undefined),
  };
}

// `area`: where files are dropped; `mayAdd`: whether messages may have any now; `sees`: also images.
export function watch({ area, prompt, input, shown, mayAdd, sees }) {
  place = shown;
  seesNow = sees;
  area.addEventListener("dragover", (event) => {
    if (event.dataTransfer.types.includes("Files")) event.preventDefault();
  });
  const addFrom = (event, data) => {
    if (!data?.files.length) return;
    event.preventDefault(); // else the browser would open the file in place of the page
    if (mayAdd()) add([...data.files]);
  };
  area.addEventListener("drop", (event) => addFrom(event, event.dataTransfer));
  prompt.addEventListener("paste", (event) => addFrom(event, event.clipboardData));
  input.addEventListener("change", () => {
    add([...input.files]);
    input.value = "";
  });
}
