"use strict";
// Filters the runs of a comparison, draws them, and saves the visible ones as CSV.
(() => {
  const place = document.getElementById("comparison");
  if (!place) return;
  const told = JSON.parse(place.textContent);
  const form = document.getElementById("filters");
  const lines = [...document.querySelectorAll("table.compared tbody tr")];
  const boxes = [...form.querySelectorAll("input[data-facet]")];
  const colour = document.getElementById("colour");
  const promise = document.getElementById("promise");
  const facets = [...new Set(boxes.map((box) => box.dataset.facet))];
  const DASHES = ["solid", "dash", "dot", "dashdot"];
  const SYMBOLS = ["circle", "diamond", "square", "triangle-up", "cross", "x", "star", "hexagon"];

  const visible = () => {
    const on = Object.fromEntries(facets.map((f) => [f, new Set(boxes.filter((b) => b.dataset.facet === f && b.checked).map((b) => b.value))]));
    return told.rows.filter((row) => facets.every((f) => on[f].has(row[f])));
  };
  const safe = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const groups = (rows) => {
    const names = [...new Set(told.rows.map((row) => String(row[colour.value])))]; // a colour stays when others are hidden
    return names.map((name, i) => [name, i, rows.filter((row) => String(row[colour.value]) === name)]).filter((g) => g[2].length);
  };
  const paint = (i) => `--c${(i % 8) + 1}`;

  // Runs that no other on the same data beats in both accuracy and ε, as in rows.py.
  const pareto = (rows) => {
    const front = [];
    const known = rows.filter((row) => promise.value in row.promises && row.accuracy !== null);
    known.sort((a, b) => a.promises[promise.value] - b.promises[promise.value] || b.accuracy - a.accuracy);
    for (const row of known) if (!front.length || row.accuracy > front[front.length - 1].accuracy) front.push(row);
    return front;
  };

  const againstEpsilon = (rows) => {
    const traces = groups(rows).map(([name, i, all]) => {
      const known = all.filter((row) => promise.value in row.promises && row.accuracy !== null);
      return {
        type: "scatter", mode: "markers", name: safe(name),
        x: known.map((row) => row.promises[promise.value]), y: known.map((row) => row.accuracy),
        customdata: known.map((row) => [safe(row.run), safe(row.method), safe(row.attack), safe(row.aggregate)]),
        hovertemplate: "<b>%{customdata[0]}</b><br>%{customdata[1]}, attack %{customdata[2]}, %{customdata[3]}<br>ε %{x:.4g}, accuracy %{y:.2%}<extra></extra>",
        marker: { size: 11, color: paint(i), symbol: SYMBOLS[i % 8] },
      };
    }).filter((trace) => trace.x.length);
    if (promise.value.includes("proved")) {
      for (const data of new Set(rows.map((row) => row.data))) {
        const front = pareto(rows.filter((row) => row.data === data));
        if (!front.length) continue;
        traces.push({
          type: "scatter", mode: "lines+markers", name: `Pareto front, ${safe(data)}`,
          x: front.map((row) => row.promises[promise.value]), y: front.map((row) => row.accuracy),
          line: { shape: "hv", width: 2, dash: "dot", color: "--c8" }, hoverinfo: "skip",
          marker: { symbol: "circle-open", size: 19, color: "--c8", line: { width: 2, color: "--c8" } },
        });
      }
    }
    return traces;
  };

  const over = (rows, what) => {
    const shown = new Set();
    return groups(rows).flatMap(([name, i, all]) => all.filter((row) => row.course[what].length).map((row) => {
      const first = !shown.has(name);
      shown.add(name);
      const x = row.course[what];
      return {
        type: "scatter", mode: x.length > 1 ? "lines" : "markers", name: safe(name), legendgroup: name, showlegend: first,
        x, y: row.course.accuracy, text: x.map(() => safe(row.run)),
        hovertemplate: "<b>%{text}</b><br>%{x:.4~s}: %{y:.2%}<extra></extra>",
        line: { color: paint(i), width: 2, dash: DASHES[i % 4] }, marker: { color: paint(i) },
      };
    }));
  };

  const wide = (values) => values.length > 1 && Math.min(...values) > 0 && Math.max(...values) > 20 * Math.min(...values);
  const logarithmic = (traces) => (wide(traces.flatMap((trace) => trace.x)) ? { type: "log" } : {});
  const AXES = {
    epsilon: { title: { text: "ε" } },
    rounds: { title: { text: "Rounds" }, tickformat: "d" },
    bytes: { title: { text: "Bytes" }, tickformat: "~s" },
    seconds: { title: { text: "Seconds" } },
  };

  const show = () => {
    const rows = visible();
    const names = new Set(rows.map((row) => row.run));
    told.rows.forEach((row, i) => { lines[i].hidden = !names.has(row.run); });
    document.getElementById("count").textContent = `${rows.length} of ${told.rows.length} runs shown`;
    const figures = [];
    for (const [name, axis] of Object.entries(AXES)) {
      if (!document.getElementById(`plot-${name}`)) continue;
      const data = name === "epsilon" ? againstEpsilon(rows) : over(rows, name);
      const scale = name === "rounds" ? {} : logarithmic(data);
      const yaxis = { title: { text: "Accuracy" }, tickformat: ".0%" };
      figures.push({ place: `plot-${name}`, data, layout: { hovermode: "closest", xaxis: { ...axis, ...scale }, yaxis, legend: { traceorder: "normal" } } });
    }
    document.getElementById("plots").textContent = JSON.stringify(figures);
    document.dispatchEvent(new Event("fedveil:figures"));
  };

  const csv = () => [told.head, ...visible().map((row) => row.line)].join("");

  document.getElementById("csv").addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
    link.download = "fedveil-runs.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
  document.getElementById("all").addEventListener("click", () => {
    for (const box of boxes) box.checked = true;
    show();
  });
  form.addEventListener("change", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  show();
})();
