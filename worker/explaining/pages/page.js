"use strict";
// Without this the page says the same: here are only finding, filtering and sorting.
(() => {
  const groups = [...document.querySelectorAll("details.group:has(.fragments)")].map((details) => ({
    details,
    count: details.querySelector(".count"),
    all: details.querySelector(".count").textContent,
    wasOpen: details.open,
    rows: null,
  }));
  const controls = document.getElementById("controls");
  if (controls === null) return;

  const find = document.getElementById("find");
  const fates = [...controls.querySelectorAll("input[name=fate]")];
  const found = document.getElementById("found");

  // Read when they are first asked for, so that a long page opens at once.
  function rowsOf(group) {
    group.rows ??= [...group.details.querySelectorAll("tbody > tr")].map((row) => ({
      row,
      fate: row.dataset.fate,
      text: row.textContent.toLowerCase(),
    }));
    return group.rows;
  }

  function filter() {
    const wanted = find.value.trim().toLowerCase();
    const shown = new Set(fates.filter((box) => box.checked).map((box) => box.value));
    const isFiltered = wanted !== "" || shown.size < fates.length;
    let total = 0;
    for (const group of groups) {
      let matching = 0;
      for (const { row, fate, text } of rowsOf(group)) {
        const matches = shown.has(fate) && text.includes(wanted);
        row.hidden = !matches;
        matching += matches;
      }
      total += matching;
      group.details.hidden = isFiltered && matching === 0;
      group.details.open = wanted === "" ? group.wasOpen : matching > 0 && matching <= 200;
      group.count.textContent = isFiltered ? `${matching} of ${group.all}` : group.all;
    }
    found.textContent = isFiltered ? `${total} found` : "";
  }

  function sortable(header) {
    const table = header.closest("table");
    const body = table.tBodies[0];
    let original = null;
    const column = header.cellIndex;
    const isNumber = header.dataset.sort === "number";
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = header.textContent;
    header.replaceChildren(button);
    button.addEventListener("click", () => {
      // The column's natural direction, the other one, then as it was.
      const directions = isNumber ? ["descending", "ascending", null] : ["ascending", "descending", null];
      const next = directions[(directions.indexOf(header.getAttribute("aria-sort")) + 1) % 3];
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      original ??= [...body.rows];
      const rows = [...original];
      if (next !== null) {
        header.setAttribute("aria-sort", next);
        const sign = next === "ascending" ? 1 : -1;
        const keyOf = (row) =>
          isNumber ? Number(row.cells[column].dataset.value) : row.cells[column].textContent.trim();
        const keys = new Map(rows.map((row) => [row, keyOf(row)]));
        rows.sort((a, b) => {
          const [one, two] = [keys.get(a), keys.get(b)];
          return sign * (one < two ? -1 : one > two ? 1 : 0);
        });
      }
      body.append(...rows);
    });
  }

  for (const header of document.querySelectorAll("th[data-sort]")) sortable(header);
  controls.addEventListener("input", filter);
  controls.addEventListener("submit", (event) => event.preventDefault());
  controls.hidden = false;
})();
