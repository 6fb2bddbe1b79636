// Asks which column of a table (.csv, .tsv) to translate, by the names in its first row.

const READ = 256 * 1024; // characters of a table that are looked at
const ROWS = 50;

// The first rows of a table, as the server reads them: CSV with quotation marks, TSV without. A last row that may be cut off is left out.
export function readRows(text, isTsv, isWhole) {
  if (isTsv) return text.split("\n").slice(0, isWhole ? ROWS : -1).slice(0, ROWS).map((line) => line.replace(/\r$/, "").split("\t"));
  const rows = [[""]];
  let isQuoted = false;
  for (let i = 0; i < text.length && rows.length <= ROWS; i += 1) {
    const row = rows.at(-1), character = text[i];
    if (isQuoted && character === '"' && text[i + 1] === '"') { row[row.length - 1] += '"'; i += 1; }
    else if (character === '"' && (isQuoted || row.at(-1) === "")) isQuoted = !isQuoted;
    else if (isQuoted) row[row.length - 1] += character;
    else if (character === ",") row.push("");
    else if (character === "\n" || character === "\r") { if (character === "\r" && text[i + 1] === "\n") i += 1; rows.push([""]); }
    else row[row.length - 1] += character;
  }
  const last = rows.at(-1);
  if (rows.length > 1 && ((last.length === 1 && last[0] === "") || !isWhole || rows.length > ROWS)) rows.pop();
  return rows;
}

// The column with the most text below the first row: most likely the one to translate.
export function wordiest(rows) {
  const letters = rows[0].map((_, i) => rows.slice(1).reduce((sum, row) => sum + (row[i]?.match(/\p{L}/gu)?.length ?? 0), 0));
  return Math.max(0, letters.indexOf(Math.max(...letters)));
}

// What the server takes for a column: its name, or its number if the first row is not a header. A number that is also a name gets a
// zero in front, which only numbers may have.
export function columnField(header, index, hasHeader) {
  let field = hasHeader ? header[index] : String(index + 1);
  while (!hasHeader && header.includes(field)) field = `0${field}`;
  return field;
}

// A form that calls `start(column)`.
export async function askColumn(file, start) {
  const { element } = globalThis.regardExplain;
  const text = (await file.slice(0, READ).text()).replace(/^\ufeff/, "");
  const rows = readRows(text, /\.tsv$/i.test(file.name), file.size <= READ);
  const [header] = rows;
  const id = `column-${Math.random().toString(36).slice(2)}`;
  const select = element("select", { id });
  const hasHeader = element("input", { type: "checkbox" });
  hasHeader.checked = true;

  // Columns without a name of their own cannot be named; their numbers can, if the first row is not a header.
  const isNamed = (i) => header[i] !== "" && header.indexOf(header[i]) === i;
  function fill(chosen) {
    select.replaceChildren(...header.map((name, i) => {
      const [sample, label] = [rows[hasHeader.checked ? 1 : 0]?.[i] ?? "", hasHeader.checked && name ? name : `Column ${i + 1}`].map((one) => one.replace(/\s+/g, " ").trim());
      const option = element("option", { value: i }, sample ? `${label.slice(0, 60)}: ${sample.slice(0, 40)}${sample.length > 40 ? "…" : ""}` : label.slice(0, 60));
      option.disabled = hasHeader.checked && !isNamed(i);
      return option;
    }));
    select.value = String(chosen);
    if (select.selectedOptions[0]?.disabled) select.value = String(header.findIndex((_, i) => isNamed(i)));
  }
  hasHeader.addEventListener("change", () => fill(Number(select.value)));
  fill(wordiest(rows));
  const form = element("form", { class: "column" }, element("label", { for: id }, "Column to translate"), element("span", { class: "select" }, select),
    element("label", { class: "check" }, hasHeader, "The first row has the names"), element("button", { type: "submit", class: "main-button" }, "Translate"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!select.selectedOptions[0] || select.selectedOptions[0].disabled) { select.focus(); return; }
    form.remove();
    start(columnField(header, Number(select.value), hasHeader.checked));
  });
  return form;
}
