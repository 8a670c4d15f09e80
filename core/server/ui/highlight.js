// Which parts of code are comments, strings, numbers and words of the language.

const LONGEST = 50_000; // characters; longer code is shown plain
const C_LIKE =
  "auto bool break case catch char class const continue default delete do double else enum extern " +
  "false float for goto if inline int long namespace new null nullptr operator private protected " +
  "public return short signed sizeof static struct switch template this throw true try typedef " +
  "typename union unsigned using virtual void volatile while";
const WORDS = {
  python:
    "and as assert async await break case class continue def del elif else except False finally for " +
    "from global if import in is lambda match None nonlocal not or pass raise return True try while " +
    "with yield self",
  javascript:
    "async await break case catch class const continue debugger default delete do else enum export " +
    "extends false finally for from function if implements import in instanceof interface let new " +
    "null of private public return static super switch this throw true try type typeof undefined " +
    "var void while with yield",
  c: C_LIKE,
  java: `${C_LIKE} abstract boolean extends final finally implements import instanceof interface ` +
    "native package super synchronized throws transient record var internal override string",
  rust:
    "as async await break const continue crate dyn else enum extern false fn for if impl in let loop " +
    "match mod move mut pub ref return self Self static struct super trait true type unsafe use where " +
    "while",
  go:
    "break case chan const continue default defer else fallthrough false for func go goto if import " +
    "interface map nil package range return select struct switch true type var",
  shell:
    "alias case cd do done echo elif else esac exit export fi for function if in local return set " +
    "shift source then unset until while",
  sql:
    "add all alter and as asc between by case create cross delete desc distinct drop else end exists " +
    "false from full group having if in index inner insert into is join key left like limit not null " +
    "on or order outer primary references right select set table then true union unique update " +
    "values when where with",
  json: "false null true",
  ruby:
    "begin break case class def do else elsif end ensure false for if in module next nil not or redo " +
    "require rescue retry return self super then true undef unless until when while yield",
};
const NAMES = {
  py: "python", python3: "python", js: "javascript", jsx: "javascript", mjs: "javascript",
  ts: "javascript", tsx: "javascript", typescript: "javascript", h: "c", cpp: "c", "c++": "c", cc: "c",
  hpp: "c", cuda: "c", cs: "java", csharp: "java", kotlin: "java", swift: "java", php: "java",
  rs: "rust", golang: "go", sh: "shell", bash: "shell", zsh: "shell", console: "shell", rb: "ruby",
  yaml: "json", yml: "json", toml: "json", jsonc: "json",
};
const HASH = "#[^\\n]*";
const SLASHES = "\\/\\/[^\\n]*|\\/\\*[\\s\\S]*?(?:\\*\\/|$)";
const COMMENTS = {
  python: HASH, shell: "(?<![^\\s;])#[^\\n]*", ruby: HASH, json: `(?<![^\\s])${HASH}`,
  sql: `--[^\\n]*|${SLASHES}`,
};
const STRINGS =
  "\"\"\"[\\s\\S]*?(?:\"\"\"|$)|'''[\\s\\S]*?(?:'''|$)|" +
  "\"(?:[^\"\\\\\\n]|\\\\.)*\"|'(?:[^'\\\\\\n]|\\\\.)*'";
const MULTILINE = "|`(?:[^`\\\\]|\\\\[\\s\\S])*`";
const NUMBERS = "\\b(?:0[xXbBoO][\\da-fA-F_]+|\\d[\\d_]*(?:\\.\\d+)?(?:[eE][+-]?\\d+)?)\\b";

const made = new Map();

function patternOf(language) {
  if (!made.has(language)) {
    const strings = STRINGS + (["javascript", "go"].includes(language) ? MULTILINE : "");
    const parts = [
      `(?<comment>${COMMENTS[language] ?? SLASHES})`, `(?<string>${strings})`,
      `(?<number>${NUMBERS})`, "(?<word>[A-Za-z_]\\w*)",
    ];
    const words = WORDS[language].split(" ");
    made.set(language, { pattern: new RegExp(parts.join("|"), "g"), words: new Set(words) });
  }
  return made.get(language);
}

// Pieces of all of the code, in order: {start, end, kind}; the kind is empty for what is plain.
export function highlight(code, name) {
  const lower = name.toLowerCase();
  const language = NAMES[lower] ?? lower;
  if (!Object.hasOwn(WORDS, language) || code.length > LONGEST)
    return [{ start: 0, end: code.length, kind: "" }];
  const { pattern, words } = patternOf(language);
  const found = [];
  let at = 0;
  for (const match of code.matchAll(pattern)) {
    const kind = kindOf(match.groups, words, language);
    if (!kind) continue;
    if (at < match.index) found.push({ start: at, end: match.index, kind: "" });
    at = match.index + match[0].length;
    found.push({ start: match.index, end: at, kind });
  }
  if (at < code.length) found.push({ start: at, end: code.length, kind: "" });
  return found;
}

function kindOf({ comment, string, number, word }, words, language) {
  if (comment) return "comment";
  if (string) return "string";
  if (number) return "number";
  return words.has(language === "sql" ? word.toLowerCase() : word) ? "word" : "";
}
