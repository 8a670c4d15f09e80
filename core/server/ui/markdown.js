// Markdown as elements. Nothing of the text is ever read as HTML: there are only elements that are
// made here, and text nodes. Each piece keeps its place in the text, so that tokens can be tinted.

import { copyButton } from "./clipboard.js";
import { highlight } from "./highlight.js";
import { Inline } from "./inline.js";
import { element, Joined } from "./lines.js";

const DEEPEST = 8; // quotes and lists in each other
const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(?=\S)/;
const RULE = /^ {0,3}(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:[ \t]+(?=\S)|[ \t]*$)/;
const DASHES = /^[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const LONGEST_DASHES = 1000;
const TASK = /^\[([ xX])\] /;

export class Markdown {
  // `paint(parent, start, end)` shows this part of the text.
  constructor(text, paint) {
    this.text = text;
    this.paint = paint;
  }

  // The blocks of all of it: {start, end, build}, where `build` makes the element.
  blocks() {
    const lines = [];
    let start = 0;
    for (const line of this.text.split("\n")) {
      lines.push({ start, end: start + line.length });
      start += line.length + 1;
    }
    return this.#blocks(lines, 0);
  }

  #of = ({ start, end }) => this.text.slice(start, end);

  #blocks(lines, depth) {
    const found = [];
    let i = 0;
    while (i < lines.length) {
      if (!this.#of(lines[i]).trim()) {
        i += 1;
        continue;
      }
      const { n, build } = this.#block(lines, i, depth);
      found.push({ start: lines[i].start, end: lines[i + n - 1].end, build });
      i += n;
    }
    return found;
  }

  #block(lines, i, depth) {
    const line = this.#of(lines[i]);
    if (FENCE.test(line)) return this.#code(lines, i);
    if (HEADING.test(line)) return this.#heading(lines[i]);
    if (RULE.test(line)) return { n: 1, build: () => document.createElement("hr") };
    if (depth < DEEPEST && QUOTE.test(line)) return this.#quote(lines, i, depth);
    if (depth < DEEPEST && ITEM.test(line)) return this.#list(lines, i, depth);
    if (this.#beginsTable(lines, i)) return this.#table(lines, i);
    return this.#paragraph(lines, i, depth);
  }

  #code(lines, i) {
    const [, fence, info] = this.#of(lines[i]).match(FENCE);
    const isEnd = (line) => {
      const bare = line.trim();
      return bare.length >= fence.length && bare === fence[0].repeat(bare.length);
    };
    let n = i + 1;
    while (n < lines.length && !isEnd(this.#of(lines[n]))) n += 1;
    const inside = lines.slice(i + 1, n);
    const isOpen = n === lines.length;
    if (isOpen && inside.length && !this.#of(inside.at(-1))) inside.pop();
    const language = info.trim().split(/\s/)[0];
    return { n: n + !isOpen - i, build: () => this.#codeBlock(inside, language) };
  }

  #codeBlock(lines, language) {
    const box = element("div", "code");
    const head = element("div", "code-head");
    const joined = new Joined(this.text, lines);
    head.append(element("span", "", language), copyButton(() => joined.text));
    const pre = element("pre");
    pre.tabIndex = 0; // scrolled by keys
    const code = element("code");
    for (const { start, end, kind } of highlight(joined.text, language))
      joined.paint(kind ? code.appendChild(element("span", `hl-${kind}`)) : code, start, end, this.paint);
    pre.append(code);
    box.append(head, pre);
    return box;
  }

  #heading(line) {
    const mark = this.#of(line).match(HEADING);
    const start = line.start + mark[0].length;
    const inside = [{ start, end: Math.max(start, line.start + withoutHashes(this.#of(line)).length) }];
    // The page itself has h1 and h2.
    return { n: 1, build: () => this.#inline(element(`h${Math.min(mark[1].length + 2, 6)}`), inside) };
  }

  #quote(lines, i, depth) {
    const inside = [];
    let n = i;
    for (; n < lines.length; n += 1) {
      const mark = this.#of(lines[n]).match(QUOTE);
      if (!mark) break;
      inside.push({ start: lines[n].start + mark[0].length, end: lines[n].end });
    }
    const build = () => this.#fill(element("blockquote"), inside, depth);
    return { n: n - i, build };
  }

  #list(lines, i, depth) {
    const isNumbered = /\d/.test(this.#of(lines[i]).match(ITEM)[2]);
    const items = [];
    let n = i;
    while (n < lines.length) {
      const isBlank = items.length && !this.#of(lines[n]).trim() && lines[n + 1];
      if (isBlank && ITEM.test(this.#of(lines[n + 1]))) n += 1;
      const mark = this.#of(lines[n]).match(ITEM);
      if (!mark || /\d/.test(mark[2]) !== isNumbered || RULE.test(this.#of(lines[n]))) break;
      const item = [{ start: lines[n].start + mark[0].length, end: lines[n].end }];
      n += 1;
      n += this.#rest(lines, n, mark[0].length, item);
      items.push(item);
    }
    const first = parseInt(this.#of(lines[i]).match(ITEM)[2], 10);
    return { n: n - i, build: () => this.#listOf(items, isNumbered, first, depth) };
  }

  // Further lines of an item: those that are indented, with what is blank between them.
  #rest(lines, from, width, item) {
    let n = from;
    for (; n < lines.length; n += 1) {
      const line = this.#of(lines[n]);
      const indent = line.length - line.trimStart().length;
      const isBlank = !line.trim();
      const next = isBlank && lines[n + 1] ? this.#of(lines[n + 1]) : "";
      if (isBlank ? !/^ {2,}\S/.test(next) : indent < 2) break;
      item.push({ start: lines[n].start + Math.min(indent, width), end: lines[n].end });
    }
    return n - from;
  }

  #listOf(items, isNumbered, first, depth) {
    const list = element(isNumbered ? "ol" : "ul");
    if (isNumbered && first !== 1) list.start = first;
    for (const lines of items) {
      const item = element("li");
      const task = this.#of(lines[0]).match(TASK);
      if (task) {
        const box = Object.assign(element("input"), { type: "checkbox", disabled: true });
        box.checked = task[1] !== " ";
        item.append(box, " ");
        lines[0] = { start: lines[0].start + task[0].length, end: lines[0].end };
      }
      list.append(this.#fill(item, lines, depth));
    }
    return list;
  }

  #fill(parent, lines, depth) {
    parent.append(...this.#blocks(lines, depth + 1).map(({ build }) => build()));
    return parent;
  }

  #beginsTable(lines, i) {
    if (!lines[i + 1] || !this.#of(lines[i]).includes("|")) return false;
    const dashes = this.#of(lines[i + 1]);
    return dashes.length < LONGEST_DASHES && DASHES.test(dashes) &&
      this.#cells(lines[i]).length === this.#cells(lines[i + 1]).length;
  }

  #table(lines, i) {
    let n = i + 2;
    while (n < lines.length && this.#of(lines[n]).includes("|")) n += 1;
    const aligns = this.#cells(lines[i + 1]).map((cell) => alignment(this.#of(cell).trim()));
    const rows = [lines[i], ...lines.slice(i + 2, n)];
    return { n: n - i, build: () => this.#tableOf(rows, aligns) };
  }

  #tableOf(rows, aligns) {
    const box = element("div", "table");
    box.tabIndex = 0; // scrolled by keys
    const table = element("table");
    rows.forEach((line, i) => {
      const row = element("tr");
      this.#cells(line).slice(0, aligns.length).forEach((cell, column) => {
        const place = this.#inline(element(i ? "td" : "th"), [cell]);
        place.style.textAlign = aligns[column];
        row.append(place);
      });
      table.append(row);
    });
    box.append(table);
    return box;
  }

  #cells(line) {
    const found = [];
    let { start, end } = line;
    const text = this.text;
    while (start < end && " \t".includes(text[start])) start += 1;
    while (end > start && " \t".includes(text[end - 1])) end -= 1;
    if (text[start] === "|") start += 1;
    if (end > start && text[end - 1] === "|" && text[end - 2] !== "\\") end -= 1;
    for (let i = start, from = start; i <= end; i += 1) {
      if (i < end && !(text[i] === "|" && text[i - 1] !== "\\")) continue;
      const cell = text.slice(from, i);
      const blank = cell.length - cell.trimStart().length;
      found.push({ start: from + blank, end: from + Math.max(blank, cell.trimEnd().length) });
      from = i + 1;
    }
    return found;
  }

  #paragraph(lines, i, depth) {
    let n = i + 1;
    while (n < lines.length && !this.#endsParagraph(lines, n, depth)) n += 1;
    const inside = lines.slice(i, n).map(({ start, end }) => {
      const line = this.text.slice(start, end);
      return { start: start + line.length - line.trimStart().length, end };
    });
    return { n: n - i, build: () => this.#inline(element("p"), inside) };
  }

  #endsParagraph(lines, n, depth) {
    const line = this.#of(lines[n]);
    if (!line.trim() || FENCE.test(line) || HEADING.test(line) || RULE.test(line)) return true;
    if (this.#beginsTable(lines, n)) return true;
    return depth < DEEPEST && (QUOTE.test(line) || (ITEM.test(line) && /\S\s+\S/.test(line)));
  }

  #inline(parent, lines) {
    const joined = new Joined(this.text, lines);
    new Inline(joined, this.paint).write(parent, 0, joined.text.length, 0);
    return parent;
  }
}

function withoutHashes(line) {
  const trimmed = line.trimEnd();
  let end = trimmed.length;
  while (trimmed[end - 1] === "#") end -= 1;
  return " \t".includes(trimmed[end - 1]) ? trimmed.slice(0, end).trimEnd() : trimmed;
}

function alignment(dashes) {
  if (!dashes.endsWith(":")) return "";
  return dashes.startsWith(":") ? "center" : "right";
}
