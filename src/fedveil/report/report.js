"use strict";
// Draws the plots of the page in the page's own colours, and again when light turns to dark or the page is printed.
(() => {
  const source = document.getElementById("plots");
  if (!source || !window.Plotly) return;
  const touch = window.matchMedia("(pointer: coarse)").matches; // there a drag scrolls the page, it does not zoom

  const hover = window.matchMedia("(hover: hover)").matches; // where nothing hovers, the buttons would hide the legend

  // Colours come as names of CSS variables ("--c1"), only ever under keys that mean a colour.
  const paint = (value, style, key) => {
    if (typeof value === "string") {
      return /color/.test(key) && value.startsWith("--") ? style.getPropertyValue(value).trim() : value;
    }
    if (Array.isArray(value)) {
      return key === "" || key === "colorscale" ? value.map((v) => paint(v, style, key)) : value;
    }
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, paint(v, style, k)]));
  };

  const axis = (own, style) => ({
    gridcolor: style.getPropertyValue("--line").trim(),
    linecolor: style.getPropertyValue("--line").trim(),
    zeroline: false,
    automargin: true,
    ...own,
  });

  const draw = (width) => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    JSON.parse(source.textContent).forEach((figure, i) => {
      const place = document.getElementById(figure.place || `plot-${i + 1}`);
      if (!place) return;
      const own = figure.layout;
      const layout = {
        height: 320,
        margin: { l: 56, r: 12, t: 12, b: 44 },
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("--fg") },
        hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: colour("--fg") } },
        hovermode: "x unified",
        dragmode: touch ? false : "zoom",
        modebar: { bgcolor: colour("--card"), color: colour("--muted"), activecolor: colour("--accent") },
        bargap: 0.12,
        uirevision: "kept", // new data leave a reader's zoom as it is
        ...own,
        ...(width ? { width } : { autosize: true }),
        legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "reversed", ...own.legend },
        xaxis: axis(own.xaxis, style),
        yaxis: axis(own.yaxis, style),
      };
      const config = {
        responsive: !width,
        displaylogo: false,
        displayModeBar: hover ? "hover" : false,
        modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
        showSendToCloud: false, // plotly.js offers by default to upload the data of a plot to its maker
        plotlyServerURL: "",
      };
      window.Plotly.react(place, paint(figure.data, style, ""), layout, config);
    });
  };

  // The first colours come at the end of loading; other scripts put new figures into the source and say so.
  document.addEventListener("fedveil:colours", () => draw());
  document.addEventListener("fedveil:figures", () => draw());
  window.addEventListener("beforeprint", () => {
    document.documentElement.dataset.print = "";
    draw(640);
  });
  window.addEventListener("afterprint", () => {
    delete document.documentElement.dataset.print;
    draw();
  });
})();
