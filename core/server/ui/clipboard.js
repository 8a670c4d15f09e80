// Copies text, also where the page came over plain HTTP and browsers offer no clipboard.

const SAID_MS = 1500;

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "away";
  document.body.append(area);
  area.select();
  const was = document.execCommand("copy");
  area.remove();
  if (!was) throw new Error("the browser refused");
  return undefined;
}

// `textOf`: what is to be copied, once the button is pressed.
export function copyButton(textOf) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.onclick = async () => {
    try {
      await copy(textOf());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not copied";
    }
    setTimeout(() => (button.textContent = "Copy"), SAID_MS);
  };
  return button;
}
