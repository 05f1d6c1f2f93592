// Tables of the class "sortable" get a field that filters their rows, and headings that sort them. Without this script
// they are as complete.
"use strict";

function value(row, column) {
  const cell = row.cells[column];
  const text = cell.dataset.sort ?? cell.textContent;
  return text !== "" && !isNaN(text) ? Number(text) : text.toLowerCase();
}

function compare(a, b) {
  if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
  return typeof a === "number" ? -1 : 1;
}

for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], rows = [...body.rows], headings = [...table.tHead.rows[0].cells];
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = "filter rows, by words";
  field.setAttribute("aria-label", "filter the rows of the table below");
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  });
  table.closest(".scroll").before(field);
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.textContent = heading.textContent;
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      // the largest number first, but text from a on
      const numbers = rows.some((row) => typeof value(row, column) === "number");
      const before = heading.getAttribute("aria-sort");
      const falls = before ? before === "ascending" : numbers;
      headings.forEach((each) => each.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", falls ? "descending" : "ascending");
      rows.sort((a, b) => (falls ? -1 : 1) * compare(value(a, column), value(b, column)));
      body.append(...rows);
    });
  });
}
