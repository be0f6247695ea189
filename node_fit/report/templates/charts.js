"use strict";
// What both pages draw with: unpacking, colours of the light and the dark theme, and pictures that follow them.

const $ = id => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)");
const drawings = new Map();
const MONO = () => ({displayModeBar: false});
const BAR = () => ({displaylogo: false, displayModeBar: innerWidth < 600 ? false : "hover", modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]]});
// Redraws a picture whose box has another width, in the frame in which it changes: a window that is turned, or narrowed for print.
const boxes = new ResizeObserver(changes => changes.forEach(({target}) => target.clientWidth !== target.layout?.width && drawings.get(target.id)()));

async function unpack(id) {
  const packed = Uint8Array.from(atob($(id).textContent), c => c.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

async function begin(page) {
  const script = document.createElement("script");
  script.textContent = await unpack("plotly");
  document.head.append(script);
  page(JSON.parse(await unpack("data")));
  dark.addEventListener("change", () => drawings.forEach(draw => draw()));
  document.body.dataset.ready = "true";
}

// Plotly reads some HTML in texts; names are to be shown as they are.
function esc(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function accent(index) {
  return colour("abcdef"[index % 6]);
}

function faded(hex, alpha) {
  const part = i => parseInt(hex.slice(i, i + 2), 16);
  return `rgba(${part(1)},${part(3)},${part(5)},${alpha})`;
}

// A colour between two others.
function mixed(from, to, share) {
  const part = i => Math.round(parseInt(from.slice(i, i + 2), 16) * (1 - share) + parseInt(to.slice(i, i + 2), 16) * share);
  return `#${[1, 3, 5].map(i => part(i).toString(16).padStart(2, "0")).join("")}`;
}

function axis(more = {}) {
  return {gridcolor: colour("line"), zerolinecolor: colour("line"), linecolor: colour("quiet"), tickcolor: colour("quiet"),
    automargin: true, ticks: "outside", ticklen: 3, exponentformat: "power", ...more};
}

function layout(more = {}) {
  const card = colour("card");
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: {l: 8, r: 8, t: 12, b: 8},
    font: {family: "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif", size: 12, color: colour("ink")},
    hoverlabel: {bgcolor: card, bordercolor: colour("quiet"), font: {color: colour("ink"), size: 12}},
    modebar: {color: colour("quiet"), activecolor: colour("ink"), bgcolor: "rgba(0,0,0,0)"},
    showlegend: false, hovermode: "closest", dragmode: "zoom",
    legend: {orientation: "h", x: 0, xanchor: "left", y: 1, yanchor: "bottom", font: {size: 12}},
    ...more,
  };
}

// Draws a picture as wide as its box, and again when the theme or that width changes. `make` gives traces and layout.
function show(id, make, config = BAR) {
  if (!$(id)) return;
  const draw = () => {
    const [traces, shape] = make(), {clientWidth: width, clientHeight: height} = $(id);
    return width && Plotly.react(id, traces, {width, height, ...shape}, config());
  };
  drawings.set(id, draw);
  draw();
  boxes.observe($(id));
}

// Steps; a single one is not to fill the axis.
function steps(values, more = {}) {
  const low = Math.min(...values), high = Math.max(...values), room = 0.03 * (high - low);
  return axis({zeroline: false, title: {text: "step"}, ...(high - low < 8 ? {dtick: 1} : {}), range: low < high ? [low - room, high + room] : low === high ? [0, 1.1 * high] : undefined, ...more});
}

// A logarithmic axis around the values that are positive, with few ticks.
function logarithmic(values, more = {}) {
  const known = values.filter(value => value > 0), low = Math.min(...known), high = Math.max(...known);
  const room = Math.max(0.06 * Math.log10(high / low), 0.05);
  const decades = Math.log10(high / low);
  return axis({type: "log", tickformat: "~g", nticks: 6, ...(decades > 3 ? {dtick: Math.ceil(decades / 6)} : decades > 0.6 ? {dtick: "D2"} : {}), range: known.length ? [Math.log10(low) - room, Math.log10(high) + room] : undefined, ...more});
}

function positive(values) {
  return values.every(value => value === null || value > 0) && values.some(value => value !== null);
}

function option(value, text) {
  const made = document.createElement("option");
  made.value = value;
  made.textContent = text;
  return made;
}
