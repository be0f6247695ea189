const ROLES = {train: "fitted", validation: "validation", test: "test"};
const SYMBOLS = {train: "circle", validation: "diamond-open", test: "circle-open"};

function runPage(data) {
  const {states = [], hidden = [], inputs = [], constants = [], units = {}, levels = {}, records = []} = data;
  const named = name => esc(units[name] ? `${name} [${units[name]}]` : name);
  let current = 0;

  // Stacked panels that share the time: one for each state or input. `place` gives the names of a panel's axes.
  function panels(heights) {
    const gap = 34, total = heights.reduce((a, b) => a + b, 0) + gap * (heights.length - 1), shape = {};
    let top = total;
    heights.forEach((height, i) => {
      const n = i ? i + 1 : "";
      shape[`yaxis${n}`] = axis({domain: [Math.max(top - height, 0) / total, top / total], anchor: "x", nticks: 6, zeroline: false});
      top -= height + gap;
    });
    return {shape, total, place: i => ({xaxis: "x", yaxis: i ? `y${i + 1}` : "y"}), ref: i => i ? `y${i + 1}` : "y"};
  }

  function frame(made, titles, record, count) {
    const annotations = titles.map((text, i) => ({text: `<b>${text}</b>`, xref: "paper", x: 0, xanchor: "left", yref: `${made.ref(i)} domain`, y: 1,
      yanchor: "bottom", yshift: 2, showarrow: false, font: {size: 12.5}}));
    const shapes = [];
    const all = record.segments.flatMap(segment => [segment.ts[0], segment.ts.at(-1)]);
    const left = Math.min(...all), right = Math.max(...all), room = 0.015 * ((right - left) || 1);
    const from = record.forecast ?? (record.held ? left - room : null);
    for (let i = 0; from !== null && i < count; i++) {
      shapes.push({type: "rect", xref: "x", x0: from, x1: right + room, yref: `${made.ref(i)} domain`, y0: 0, y1: 1, fillcolor: colour("shade"),
        line: {width: 0}, layer: "below"});
    }
    if (record.forecast !== null) {
      annotations.push({text: "<i>forecast</i>", xref: "x", x: record.forecast, xanchor: "left", yref: `${made.ref(0)} domain`, y: 1, yanchor: "top",
        showarrow: false, font: {size: 11.5, color: colour("quiet")}});
    }
    return {annotations, shapes, xaxis: axis({title: {text: named(data.time), standoff: 6}, anchor: made.ref(count - 1), range: [left - room, right + room],
      zeroline: false})};
  }

  function fit() {
    const record = records[current], narrow = innerWidth < 600;
    const heights = [...states.map(() => states.length > 3 ? 150 : narrow ? 190 : 230), ...hidden.map(() => 120), ...inputs.map(() => 90)];
    const made = panels(heights), traces = [], listed = new Set(), curved = states.length + hidden.length;
    // Many points are small and pale under the curve; a crowd of them is a line.
    const rows = record.segments.reduce((sum, {ts}) => sum + ts.length, 0), many = rows > 300, crowd = rows > 1000;
    const add = (name, trace) => {
      traces.push({...trace, name, legendgroup: name, showlegend: !listed.has(name)});
      listed.add(name);
    };
    states.forEach((_, i) => {
      const ink = accent(i), where = made.place(i);
      for (const {role, ts, curve, ys} of record.segments) {
        if (curve.bands) {
          const [low, high] = curve.bands.map(edge => edge[i]);
          traces.push({...where, x: curve.ts, y: low, mode: "lines", line: {width: 0}, hoverinfo: "skip", showlegend: false});
          add("band", {...where, x: curve.ts, y: high, mode: "lines", line: {width: 0}, fill: "tonexty", fillcolor: faded(ink, 0.22), hoverinfo: "skip"});
        }
        const marks = {...where, x: ts, y: ys[i], mode: crowd ? "lines" : "markers", hovertemplate: "%{y:.5g}", line: {color: ink, width: 1.2},
          marker: {symbol: SYMBOLS[role] ?? "circle", color: faded(ink, many ? 0.45 : 0.9), size: many ? 4 : 7, line: {width: many ? 1 : 1.4}}};
        const line = {...where, x: curve.ts, y: curve.ys[i], mode: "lines", hovertemplate: "%{y:.5g}",
          line: {color: many ? faded(colour("ink"), crowd ? 0.75 : 1) : ink, width: crowd ? 1 : many ? 1.3 : 2}};
        add(crowd ? "measured" : ROLES[role] ?? role, marks);
        add("model", line);
      }
    });
    hidden.forEach((_, k) => {
      for (const {curve} of record.segments) if (curve.hidden)
        add("model", {...made.place(states.length + k), x: curve.ts, y: curve.hidden[k], mode: "lines", hovertemplate: "%{y:.5g}",
          line: {color: accent(states.length + k), width: 2}});
    });
    // Doses, resets and switches, as ticks at the bottom of what they may move: each on an axis of its own over the panel's.
    if (record.events.length) for (let i = 0; i < curved; i++) {
      const n = heights.length + 1 + i;
      made.shape[`yaxis${n}`] = {overlaying: made.ref(i), range: [0, 1], visible: false, fixedrange: true};
      add("event", {xaxis: "x", yaxis: `y${n}`, x: record.events.map(([t]) => t), y: record.events.map(() => 0.05), mode: "markers",
        text: record.events.map(([, text]) => esc(text)), hovertemplate: "%{text}", marker: {symbol: "line-ns", size: 11, line: {color: accent(2), width: 2}}});
    }
    inputs.forEach((_, k) => {
      const where = made.place(curved + k), joined = name => record.segments.flatMap(segment => name(segment));
      traces.push({...where, x: joined(({ts}) => ts), y: joined(({us}) => us[k]), mode: "lines", line: {color: colour("quiet"), width: 1, shape: data.held[k] ? "hv" : "linear"}, name: "input",
        hovertemplate: "%{y:.5g}", showlegend: false});
    });
    const titles = [...states.map(named), ...hidden.map(name => `${named(name)}</b> <i>hidden</i><b>`), ...inputs.map(named)];
    const base = frame(made, titles, record, heights.length), above = narrow ? 62 : 76;
    return [traces, layout({...made.shape, ...base, height: made.total + 54 + above, margin: {l: 8, r: 8, t: above, b: 8}, showlegend: true, hovermode: "x unified",
      legend: {orientation: "h", x: 0, xanchor: "left", y: 1 + 20 / made.total, yanchor: "bottom"}})];
  }

  function residuals() {
    const record = records[current], made = panels(states.map(() => 110)), traces = [];
    states.forEach((_, i) => {
      for (const {role, ts, residuals: each} of record.segments)
        traces.push({...made.place(i), x: ts, y: each[i], mode: ts.length > 300 ? "lines" : "lines+markers", name: ROLES[role] ?? role,
          line: {color: faded(accent(i), 0.8), width: 1}, marker: {symbol: SYMBOLS[role] ?? "circle", size: 5}, hovertemplate: "%{y:.4g}"});
      made.shape[`yaxis${i ? i + 1 : ""}`].zeroline = true;
      made.shape[`yaxis${i ? i + 1 : ""}`].zerolinecolor = colour("quiet");
      made.shape[`yaxis${i ? i + 1 : ""}`].nticks = 5;
    });
    const base = frame(made, states.map(named), record, states.length);
    return [traces, layout({...made.shape, ...base, height: made.total + 80, margin: {l: 8, r: 8, t: 26, b: 8}, hovermode: "x unified"})];
  }

  const dashes = {train: "solid", validation: "dot", test: "dash"};
  function correlation() {
    const traces = [], shapes = [];
    for (const {role, correlations, limit} of data.checks) {
      correlations.forEach((values, i) => traces.push({x: values.map((_, lag) => lag), y: values, mode: "lines+markers", marker: {size: 4},
        name: `${esc(states[i])}, ${role}`, line: {color: accent(i), width: 1.5, dash: dashes[role]}, hovertemplate: "%{y:.2f} at lag %{x}"}));
      shapes.push({type: "rect", xref: "paper", x0: 0, x1: 1, y0: -limit, y1: limit, fillcolor: faded(colour("quiet"), 0.12), line: {width: 0}, layer: "below"});
    }
    return [traces, layout({shapes, showlegend: traces.length < 7, xaxis: axis({title: {text: "rows apart"}, zeroline: false}), yaxis: axis({range: [-1.05, 1.05]}),
      margin: {l: 8, r: 8, t: 40, b: 8}})];
  }

  function distribution() {
    const traces = [], centres = bins => Array.from({length: bins}, (_, k) => -4 + 8 * (k + 0.5) / bins), at = centres(81);
    for (const {role, densities} of data.checks)
      densities.forEach((values, i) => values.length && traces.push({x: centres(values.length), y: values, mode: "lines", line: {shape: "hvh", color: accent(i), width: 1.5, dash: dashes[role]},
        name: `${esc(states[i])}, ${role}`, hovertemplate: "%{y:.2f}"}));
    traces.push({x: at, y: at.map(x => Math.exp(-x * x / 2) / Math.sqrt(2 * Math.PI)), mode: "lines", name: "normal", hoverinfo: "skip",
      line: {color: colour("quiet"), width: 1.2}});
    return [traces, layout({showlegend: false, xaxis: axis({title: {text: "residual, in standard deviations (grey: normal)"}, zeroline: false}),
      yaxis: axis({rangemode: "tozero", showticklabels: false, ticks: ""}), margin: {l: 8, r: 8, t: 40, b: 8}})];
  }

  // The vector field as arrows of equal length, and the lines on which a state stands still.
  function arrows({xs, ys, slopes}) {
    const every = 2, dx = (xs.at(-1) - xs[0]) / xs.length * every, dy = (ys.at(-1) - ys[0]) / ys.length * every, x = [], y = [];
    for (let j = 1; j < ys.length; j += every) for (let i = 1; i < xs.length; i += every) {
      const [u, v] = slopes[j][i];
      if (u === null || v === null) continue;
      const a = u / dx, b = v / dy, size = Math.hypot(a, b);
      if (!size) continue;
      const p = 0.33 * a / size, q = 0.33 * b / size;
      const put = (s, t) => { x.push(xs[i] + s * dx); y.push(ys[j] + t * dy); };
      put(-p, -q); put(p, q);
      x.push(null); y.push(null);
      put(p - 0.36 * p + 0.24 * q, q - 0.36 * q - 0.24 * p); put(p, q); put(p - 0.36 * p - 0.24 * q, q - 0.36 * q + 0.24 * p);
      x.push(null); y.push(null);
    }
    return {x, y, mode: "lines", line: {color: faded(colour("quiet"), 0.55), width: 1}, hoverinfo: "skip", name: "vector field"};
  }

  function phase() {
    const record = records[current], {xs, ys, slopes} = data.field, traces = [arrows(data.field)];
    [0, 1].forEach(k => traces.push({type: "contour", x: xs, y: ys, z: slopes.map(row => row.map(each => each[k])), showscale: false, hoverinfo: "skip",
      contours: {type: "levels", coloring: "none", start: 0, end: 0, size: 1}, line: {color: faded(accent(k + 2), 0.8), width: 1.4, dash: "dot"}, ncontours: 1,
      name: `${named(states[k])} stands still`, showlegend: true}));
    const listed = new Set();
    for (const {role, ts, ys: measured, curve} of record.segments) {
      const held = role !== "train", ink = accent(held ? 1 : 0);
      const hover = "%{x:.4g}, %{y:.4g}";
      traces.push({x: curve.ys[0], y: curve.ys[1], mode: "lines", line: {color: ink, width: 2}, name: held ? "model, held out" : "model, fitted",
        showlegend: !listed.has(held), hovertemplate: hover});
      listed.add(held);
      traces.push({x: measured[0], y: measured[1], mode: "markers", name: ROLES[role] ?? role, hovertemplate: hover, marker: {color: ink, symbol: SYMBOLS[role] ?? "circle",
        size: ts.length > 300 ? 3 : 6, opacity: ts.length > 300 ? 0.5 : 1}});
    }
    const start = record.segments[0].curve.ys;
    traces.push({x: [start[0][0]], y: [start[1][0]], mode: "markers", name: "start", hoverinfo: "skip",
      marker: {symbol: "square", size: 8, color: colour("card"), line: {color: colour("ink"), width: 1.5}}});
    return [traces, layout({height: innerWidth < 600 ? 420 : 560, showlegend: true, margin: {l: 8, r: 8, t: 70, b: 8},
      xaxis: axis({title: {text: named(states[0])}, range: [xs[0], xs.at(-1)], zeroline: false, showgrid: false}),
      yaxis: axis({title: {text: named(states[1])}, range: [ys[0], ys.at(-1)], zeroline: false, showgrid: false})})];
  }

  function errors() {
    const traces = Object.entries(data.errors).map(([kind, points], k) => ({x: points.map(p => p[0]), y: points.map(p => p[1]), customdata: points.map(p => p[3]),
      text: points.map(p => esc(p[2])), mode: "markers", name: kind === "held" ? "held out" : "fitted", hovertemplate: "%{text}<br>NRMSE %{y:.3g}<extra></extra>",
      marker: {color: accent(k), size: 6, symbol: kind === "held" ? "circle-open" : "circle"}}));
    return [traces, layout({showlegend: true, xaxis: axis({title: {text: "share of trajectories"}, tickformat: ".0%", range: [-0.02, 1.02], zeroline: false}),
      yaxis: positive(traces.flatMap(t => t.y)) ? logarithmic(traces.flatMap(t => t.y), {title: {text: "NRMSE"}}) : axis({title: {text: "NRMSE"}}), margin: {l: 8, r: 8, t: 40, b: 8}})];
  }

  function loss(stage) {
    const traces = [], one = stage.members.length === 1;
    stage.members.forEach(({step, train, validation}, m) => {
      [["training", train, 0], ["validation", validation, 1]].forEach(([name, values, k]) => {
        if (values.some(value => value !== null))
          traces.push({x: step, y: values.map(value => value > 0 ? value : null), mode: step.length > 60 ? "lines" : "lines+markers", marker: {size: 4},
            name, legendgroup: name, showlegend: m === 0, line: {color: one ? accent(k) : faded(accent(k), 0.75), width: one ? 1.8 : 1.2},
            hovertemplate: one ? "%{y:.3g}" : `%{y:.3g}, member ${m}`});
      });
    });
    const judged = stage.members.flatMap(({step, train, validation}) =>
      (validation.some(v => v !== null) ? validation : train).map((value, i) => [value, step[i]])).filter(([value]) => value > 0);
    if (judged.length) {
      const best = judged.reduce((a, b) => b[0] < a[0] ? b : a);
      traces.push({x: [best[1]], y: [best[0]], mode: "markers", name: "best", hovertemplate: "%{y:.3g} at step %{x}<extra>best</extra>",
        marker: {symbol: "circle-open", size: 11, color: colour("ink"), line: {width: 1.6}}});
    }
    return [traces, layout({showlegend: true, xaxis: steps(traces.flatMap(trace => trace.x)), yaxis: logarithmic(traces.flatMap(trace => trace.y)), margin: {l: 8, r: 8, t: 40, b: 8}})];
  }

  function label({name, rank, errors: each}) {
    const shown = Object.entries(each).map(([role, error]) => `${role} ${error === null ? "–" : error.toPrecision(2)}`).join(", ");
    return `${name}${rank ? ` (${rank})` : ""} · NRMSE ${shown}`;
  }

  function pick(index) {
    current = (index + records.length) % records.length;
    if ($("pick")) $("pick").value = current;
    const step = Math.max(...records[current].segments.map(segment => segment.step));
    // Inputs that are constant need no panel.
    const given = constants.map((name, k) => `${name}${units[name] ? ` [${units[name]}]` : ""} = ${(levels[name] ?? [])[records[current].constants[k]] ?? records[current].constants[k] ?? "–"}`).join(", ");
    $("said").textContent = [records.length === 1 ? label(records[current]) : "", given, step > 1 ? `every ${step}th row is drawn` : ""].filter(Boolean).join("; ");
    show("fit", fit);
    show("residuals", residuals, MONO);
    if (data.field) show("phase", phase);
  }

  function offer() {
    for (const [title, held] of [["held out", true], ["fitted", false]]) {
      const group = document.createElement("optgroup");
      group.label = title;
      records.forEach((record, index) => record.held === held && group.append(option(index, label(record))));
      if (group.childElementCount) $("pick").append(group);
    }
    $("pick").addEventListener("change", event => pick(Number(event.target.value)));
    $("back").addEventListener("click", () => pick(current - 1));
    $("next").addEventListener("click", () => pick(current + 1));
  }

  function starts() {
    const losses = data.starts, trace = {x: losses.map((_, i) => i + 1), y: losses, mode: "lines+markers", marker: {size: 5, color: accent(0)}, line: {color: accent(0), width: 1},
      hovertemplate: "%{y:.4g}<extra></extra>"};
    return [[trace], layout({showlegend: false, xaxis: axis({title: {text: "starts, the best first"}, zeroline: false}),
      yaxis: axis({...(losses[0] > 0 ? {type: "log", range: [Math.log10(losses[0] / 2), Math.log10(2 * losses[losses.length - 1])]} : {}), title: {text: "loss"}}),
      margin: {l: 8, r: 8, t: 10, b: 8}})];
  }

  // Systems of equations: those that were judged, and the best of each size.
  function front() {
    const {systems, front: best} = data.discovery, known = systems.filter(({error}) => error > 0 && error < 10), hover = "size %{x}, error %{y:.3g}<br>%{text}<extra></extra>";
    const text = each => each.lines.map(esc).join("<br>");
    return [[
      {x: known.map(each => each.size), y: known.map(each => each.error), text: known.map(text), mode: "markers", name: "judged", hovertemplate: hover,
        marker: {size: 5, color: faded(colour("quiet"), 0.5)}},
      {x: best.map(([size]) => size), y: best.map(([, error]) => error), mode: "lines+markers", name: "best of its size", hoverinfo: "skip",
        line: {color: accent(0), width: 1.5, shape: "hv"}, marker: {size: 6, color: accent(0)}},
      {x: [systems[0].size], y: [systems[0].error], text: [text(systems[0])], mode: "markers", name: "most probable", hovertemplate: hover,
        marker: {symbol: "circle-open", size: 13, color: colour("ink"), line: {width: 1.6}}}
    ], layout({showlegend: true, xaxis: axis({title: {text: "size"}, zeroline: false}), yaxis: logarithmic(known.map(each => each.error), {title: {text: "error"}}),
      margin: {l: 8, r: 8, t: 40, b: 8}})];
  }

  function candidates() {
    const {time, times, measured, fine, systems} = data.discovery.curves, names = Object.keys(data.discovery.curves.measured);
    const made = panels(names.map(() => 200)), traces = [];
    names.forEach((name, i) => {
      traces.push({...made.place(i), x: times, y: measured[name], mode: "markers", name: "measured", legendgroup: "measured", showlegend: !i,
        marker: {size: times.length > 300 ? 3 : 6, color: faded(colour("ink"), 0.55)}, hovertemplate: "%{y:.5g}"});
      systems.forEach((columns, k) => columns && traces.push({...made.place(i), x: fine, y: columns[i], mode: "lines", name: `${k + 1}`, legendgroup: k, showlegend: !i,
        line: {color: accent(k), width: k ? 1.3 : 2.2, dash: k ? "dash" : "solid"}, hovertemplate: "%{y:.5g}"}));
    });
    const annotations = names.map((name, i) => ({text: `<b>${named(name)}</b>`, xref: "paper", x: 0, xanchor: "left", yref: `${made.ref(i)} domain`, y: 1, yanchor: "bottom",
      yshift: 2, showarrow: false, font: {size: 12.5}}));
    return [traces, layout({...made.shape, annotations, height: made.total + 116, margin: {l: 8, r: 8, t: 62, b: 8}, showlegend: true, hovermode: "x unified",
      xaxis: axis({title: {text: named(time), standoff: 6}, anchor: made.ref(names.length - 1), zeroline: false}),
      legend: {orientation: "h", x: 0, xanchor: "left", y: 1 + 20 / made.total, yanchor: "bottom"}})];
  }

  if (data.discovery) { show("front", front); show("candidates", candidates); }
  if ($("starts")) show("starts", starts);
  if (records.length > 1) offer();
  if (records.length) pick(0);
  if (data.checks?.length) { show("correlation", correlation, MONO); show("distribution", distribution, MONO); }
  if ($("errors")) {
    show("errors", errors);
    $("errors").on("plotly_click", ({points: [point]}) => point.customdata >= 0 && pick(point.customdata));
  }
  (data.stages ?? []).forEach((stage, i) => show(`loss${i}`, () => loss(stage), MONO));
  $("copy").addEventListener("click", () => {
    navigator.clipboard?.writeText($("command").textContent);
    $("copy").textContent = "copied";
  });
}

begin(runPage);
