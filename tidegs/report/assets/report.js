"use strict";
// Draws the page from the JSON in #data. Every chart is an SVG with a crosshair; colours follow the theme by CSS variables.
(() => {
  const D = JSON.parse(document.getElementById("data").textContent);
  const NS = "http://www.w3.org/2000/svg";
  const COLORS = ["var(--c0)", "var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)", "var(--c6)"];
  const OWNERS = {
    parameters: COLORS[0], moments: COLORS[1], gradients: COLORS[2], statistics: COLORS[3], free: "var(--free)",
    seeds: COLORS[6], code: COLORS[6], Python: COLORS[5], arena: COLORS[0], "host cache": COLORS[1], images: COLORS[2], rasterizer: COLORS[3],
    "block table": COLORS[4], other: "var(--free)",
  };

  // -- numbers ------------------------------------------------------------------------------------------------------
  const trim = (v, digits = 3) => (v === 0 ? "0" : Math.abs(v) >= 1e6 || Math.abs(v) < 1e-3 ? v.toExponential(2)
    : String(Number(v.toPrecision(Math.max(digits, Math.ceil(Math.log10(Math.abs(v) + 1)))))));
  const bytes = (v) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let at = 0;
    while (Math.abs(v) >= 1024 && at < units.length - 1) { v /= 1024; at += 1; }
    return trim(v) + " " + units[at];
  };
  const FORMATS = {
    bytes, share: (v) => trim(100 * v) + " %", ms: (v) => trim(v) + " ms", db: (v) => v.toFixed(2) + " dB",
    plain: (v) => trim(v, 4), count: (v) => Math.round(v).toLocaleString("en"),
  };
  function ticks(low, high, count, unit) {
    const span = high - low || 1;
    let step;
    if (unit === "bytes") {
      step = 2 ** Math.ceil(Math.log2(span / count));
    } else {
      const raw = span / count, power = 10 ** Math.floor(Math.log10(raw));
      step = power * [1, 2, 5, 10].find((m) => m * power >= raw * 0.999);
    }
    const out = [];
    for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-6; v += step) out.push(Math.abs(v) < step * 1e-9 ? 0 : v);
    return out;
  }

  // -- elements -----------------------------------------------------------------------------------------------------
  function el(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [k, v] of Object.entries(attributes)) node.setAttribute(k, v);
    node.append(...children);
    return node;
  }
  function svg(tag, attributes = {}, text) {
    const node = document.createElementNS(NS, tag);
    for (const [k, v] of Object.entries(attributes)) node.setAttribute(k, v);
    if (text !== undefined) node.textContent = text;
    return node;
  }
  const tip = el("div", { class: "tip", hidden: "" });
  document.body.append(tip);
  function showTip(event, lines) {
    tip.replaceChildren(...lines.map((line) => (line instanceof Node ? line : el("div", {}, line))));
    tip.hidden = false;
    const box = tip.getBoundingClientRect(), pad = 14;
    const x = event.clientX + pad + box.width > innerWidth ? event.clientX - pad - box.width : event.clientX + pad;
    tip.style.left = Math.max(4, x) + "px";
    tip.style.top = Math.min(event.clientY + pad, innerHeight - box.height - 4) + "px";
  }
  const swatch = (color) => { const b = el("b"); b.style.background = color; return b; };
  function legend(series) {
    return el("div", { class: "legend" }, ...series.map((s) => el("span", {}, swatch(s.color), s.name)));
  }

  // -- charts -------------------------------------------------------------------------------------------------------
  // spec: {title, note, x, xlabel, unit, series: [{name, y, color, width, dots, x}], stacked, refs: [{y, name}], marks: [{x, y, name}], zero}
  function chart(host, spec) {
    const W = 560, H = 250, L = 64, R = 12, T = 18, B = 34;
    const series = spec.series.map((s, i) => ({ color: COLORS[i % COLORS.length], x: spec.x, ...s }));
    const format = FORMATS[spec.unit || "plain"];
    const tops = series.map((s) => s.y.slice());
    if (spec.stacked) for (let k = 1; k < tops.length; k += 1) tops[k] = tops[k].map((v, i) => (v || 0) + (tops[k - 1][i] || 0));
    const known = tops.flat().filter((v) => v !== null && Number.isFinite(v));
    const refs = (spec.refs || []).filter((r) => r.y);
    const marks = spec.marks || [];
    const values = known.concat(refs.map((r) => r.y), marks.map((m) => m.y));
    if (!known.length) return;
    let low = spec.zero === false ? Math.min(...values) : Math.min(0, ...values), high = Math.max(...values);
    if (spec.clip) high = Math.min(high, 2 * known.slice().sort((a, b) => a - b)[Math.floor(0.9 * (known.length - 1))]);
    if (spec.zero === false) { const pad = (high - low || Math.abs(high) || 1) * 0.06; low -= pad; high += pad; }
    if (high === low) high = low + 1;
    const xs = series.flatMap((s) => s.x);
    const x0 = Math.min(...xs), x1 = Math.max(...xs, x0 + 1e-9);
    const X = (v) => L + ((v - x0) / (x1 - x0)) * (W - L - R);
    const Y = (v) => T + (1 - (Math.min(v, high) - low) / (high - low)) * (H - T - B);
    const root = svg("svg", { viewBox: `0 0 ${W} ${H}`, class: "chart", role: "img", "aria-label": spec.title });
    for (const t of ticks(low, high, 5, spec.unit)) {
      root.append(svg("line", { x1: L, x2: W - R, y1: Y(t), y2: Y(t), stroke: "var(--grid)" }));
      root.append(svg("text", { x: L - 8, y: Y(t) + 4, "text-anchor": "end" }, format(t)));
    }
    for (const t of ticks(x0, x1, 6, spec.xunit)) {
      root.append(svg("text", { x: X(t), y: H - B + 16, "text-anchor": "middle" }, FORMATS[spec.xunit || "plain"](t)));
    }
    root.append(svg("text", { x: W - R, y: H - 3, "text-anchor": "end" }, spec.xlabel || "step"));
    series.forEach((s, k) => {
      const points = s.x.map((x, i) => [X(x), tops[k][i] === null ? null : Y(tops[k][i])]).filter((p) => p[1] !== null);
      if (spec.stacked) {
        const below = k ? tops[k - 1] : tops[k].map(() => 0);
        const floor = s.x.map((x, i) => [X(x), Y(below[i] || 0)]).reverse();
        root.append(svg("path", { d: path(points.concat(floor)) + "Z", fill: s.color, "fill-opacity": 0.85, class: "data" }));
        return;
      }
      if (s.dots || points.length === 1) {
        for (const [x, y] of points) root.append(svg("circle", { cx: x, cy: y, r: 4, fill: s.color, stroke: "var(--panel)", class: "data" }));
      }
      if (points.length > 1) {
        root.append(svg("path", { d: path(points), fill: "none", stroke: s.color, "stroke-width": s.width || 1.8, "stroke-linejoin": "round", class: "data" }));
      }
    });
    for (const r of refs) {
      root.append(svg("line", { x1: L, x2: W - R, y1: Y(r.y), y2: Y(r.y), stroke: "var(--ink)", "stroke-dasharray": "5 4", "stroke-opacity": 0.6 }));
      root.append(svg("text", { x: W - R - 2, y: Math.max(Y(r.y) - 4, 10), "text-anchor": "end" }, `${r.name} ${format(r.y)}`));
    }
    for (const m of marks) {
      root.append(svg("circle", { cx: X(m.x), cy: Y(m.y), r: 5, fill: "var(--ink)", stroke: "var(--panel)" }));
      const left = X(m.x) > 0.7 * W;
      root.append(svg("text", { x: X(m.x) + (left ? -8 : 8), y: Y(m.y) - 8, "text-anchor": left ? "end" : "start" }, m.name));
    }
    hover(root, series, { W, H, L, R, T, B, X, x0, x1, format, xlabel: spec.xlabel || "step", xformat: FORMATS[spec.xunit || "count"], stacked: spec.stacked, y: spec.series });
    const named = series.filter((s) => s.name);
    host.append(figure(spec, root, named.length > 1 || spec.legend ? legend(named) : null));
  }
  const path = (points) => "M" + points.map(([x, y]) => x.toFixed(1) + " " + y.toFixed(1)).join("L");
  function figure(spec, body, key) {
    const out = el("figure", { class: "panel" }, el("h3", {}, spec.title));
    if (key) out.append(key);
    out.append(body);
    if (spec.note) out.append(el("figcaption", { class: "note" }, spec.note));
    return out;
  }
  function hover(root, series, c) {
    const line = svg("line", { y1: c.T, y2: c.H - c.B, stroke: "var(--soft)", "stroke-opacity": 0 });
    root.append(line);
    root.addEventListener("mousemove", (event) => {
      const box = root.getBoundingClientRect();
      const at = c.x0 + (((event.clientX - box.left) / box.width) * c.W - c.L) / (c.W - c.L - c.R) * (c.x1 - c.x0);
      const main = series[0];
      let i = 0;
      main.x.forEach((x, k) => { if (Math.abs(x - at) < Math.abs(main.x[i] - at)) i = k; });
      const x = main.x[i];
      line.setAttribute("x1", c.X(x)); line.setAttribute("x2", c.X(x)); line.setAttribute("stroke-opacity", 0.5);
      const lines = [`${c.xlabel} ${c.xformat(x)}`];
      (c.stacked ? series.slice().reverse() : series).forEach((s) => {
        const k = s.x === main.x ? i : s.x.indexOf(x);
        if (k >= 0 && s.y[k] !== null && s.y[k] !== undefined) lines.push(el("div", {}, swatchInline(s.color), ` ${s.name} ${c.format(s.y[k])}`));
      });
      showTip(event, lines);
    });
    root.addEventListener("mouseleave", () => { tip.hidden = true; line.setAttribute("stroke-opacity", 0); });
  }
  const swatchInline = (color) => el("span", { style: `display:inline-block;width:9px;height:9px;border-radius:2px;background:${color}` });

  // rows: [{group} | {name, parts: [{v, color, name}], top, text}]
  function bars(host, title, rows, note, key) {
    const box = el("div", { class: "bars" });
    for (const row of rows) {
      if (row.group) { box.append(el("div", { class: "group" }, row.group)); continue; }
      const track = el("div", { class: "track" });
      for (const part of row.parts) {
        const bar = el("i", { class: "data", title: `${part.name || row.name}: ${part.text || ""}` });
        bar.style.width = Math.min(100, (100 * part.v) / row.top) + "%";
        bar.style.background = part.color;
        track.append(bar);
      }
      box.append(el("div", {}, row.name), track, el("div", { class: "num" }, row.text));
    }
    host.append(figure({ title, note }, box, key));
  }

  // -- sections -----------------------------------------------------------------------------------------------------
  const at = (id) => document.getElementById(id);
  const F = D.facts, C = D.curves;
  const owners = (names) => names.map((name) => ({ name, color: OWNERS[name] || COLORS[5] }));

  function memory(host) {
    const rows = [], used = new Set();
    const tiers = Object.entries(F.tiers).filter(([tier]) => tier !== "rss");
    for (const [tier, t] of tiers) {
      const top = Math.max(t.budget || 0, t.peak || 0) || 1;
      const parts = Object.entries(t.owners).filter(([, v]) => v > 0);
      parts.forEach(([name]) => used.add(name));
      const drawn = parts.length ? parts.map(([name, v]) => ({ v, name, color: OWNERS[name] || COLORS[5], text: bytes(v) }))
        : [{ v: t.peak, color: COLORS[0], text: bytes(t.peak) }];
      rows.push({ name: D.tier_names[tier], parts: drawn, top, text: bytes(t.peak) + (t.budget ? " of " + bytes(t.budget) : "") });
    }
    if (rows.length) bars(host, "Peak of each tier, by owner", rows, "Each bar ends at the tier's budget, or at its peak where it has none.", used.size ? legend(owners([...used])) : null);
    if (!C.step) return;
    const drawn = (tier, title, refs, note) => {
      const found = (C.owners || {})[tier];
      if (found) chart(host, { title, x: C.step, unit: "bytes", stacked: true, refs, note, legend: true, series: Object.entries(found).map(([name, y]) => ({ name, y, color: OWNERS[name] })) });
      else if ((C.tiers || {})[tier]) chart(host, { title, x: C.step, unit: "bytes", refs, note, series: [{ name: D.tier_names[tier], y: C.tiers[tier] }] });
    };
    drawn("rss", "Process memory over time", [], "Resident bytes of the whole process. Code: programs and libraries; Python: what was there before the run opened; other: what grew since and belongs to no tier (compiled kernels, the allocator, frames).");
    const budget = (tier) => [{ y: (F.tiers[tier] || {}).budget, name: "budget" }];
    drawn("arena", "Arena over time", budget("arena"));
    drawn("host", "Host cache over time", budget("host"));
    drawn("disk", "Records on SSD over time", [], "Payload of the newest records. A block that was never touched is stored as its seed points; planes that are all zero are not stored.");
    if ((C.tiers || {}).images) drawn("images", "Decoded images over time", budget("images"));
  }

  function traffic(host) {
    const rows = [];
    for (const [link, t] of Object.entries(F.links)) {
      if (t.bytes_a_step === null) continue;
      const top = Math.max(t.full_reload_a_step || 0, t.bytes_a_step, t.no_reuse_a_step || 0) || 1;
      rows.push({ group: t.label });
      const one = (name, v, color) => { if (v !== null && v !== undefined) rows.push({ name, parts: [{ v, color, text: bytes(v) }], top, text: bytes(v) }); };
      one("this run", t.bytes_a_step, COLORS[0]);
      one("Belady’s bound", t.bound_a_step, COLORS[2]);
      one("no reuse", t.no_reuse_a_step, COLORS[1]);
      one("full reload", t.full_reload_a_step, "var(--free)");
    }
    if (rows.length) bars(host, "Bytes a step on each link", rows, D.traffic_note);
    if (C.links && Object.keys(C.links).length) {
      chart(host, { title: "Bytes a step over time", x: C.step, unit: "bytes", series: Object.entries(C.links).map(([link, y]) => ({ name: F.links[link].label, y })) });
    }
    if (D.loads) {
      const marks = Object.entries(D.loads.marks).map(([name, m]) => ({ x: m.blocks, y: m.loads, name }));
      chart(host, {
        title: "Least loads a visit against the size of the cache", x: D.loads.blocks, xlabel: "blocks in the cache", unit: "count",
        xunit: "count", series: [{ name: "Belady’s bound", y: D.loads.loads, dots: true }], marks, refs: [{ y: D.loads.no_reuse, name: "no reuse" }],
        note: `What the best eviction could do along the first ${D.loads.visits.toLocaleString("en")} visits of this run, by the last snapshot’s bounds. Where the curve turns flat, a larger budget buys little.`,
      });
    }
  }

  function time(host) {
    if (!C.step) return;
    const series = [{ name: "waiting for blocks", y: C.stall_share, color: COLORS[4] }];
    if (C.image_share) series.push({ name: "waiting for images", y: C.image_share, color: COLORS[1] });
    chart(host, { title: "Share of the time spent waiting", x: C.step, unit: "share", series, legend: true });
    chart(host, { title: "Time a step", x: C.step, unit: "ms", clip: true, series: [{ name: "time a step", y: C.ms }], note: "Warming up, evaluations and exports are in it; what lies above twice the 90th percentile is cut off." });
  }

  function cameras(host) {
    if (D.sets) {
      chart(host, {
        title: "Working set: blocks that a camera needs", x: D.sets.at, xlabel: D.sets.along, unit: "count", series: [{ name: "blocks", y: D.sets.blocks }],
        refs: [{ y: D.sets.arena, name: "arena" }], note: `Mean ${FORMATS.count(D.sets.mean)} (${FORMATS.share(D.sets.mean_share)} of the scene), greatest ${FORMATS.count(D.sets.greatest)}. A camera above the arena’s line is rendered in parts.`,
      });
    }
    if (D.map) map(host, D.map);
  }

  function map(host, m) {
    const W = 560, K = W / m.width, H = Math.min(720, m.height * K), k = H / m.height;
    const scale = Math.min(K, k), root = svg("svg", { viewBox: `0 0 ${m.width * scale} ${m.height * scale}`, class: "chart", role: "img", "aria-label": "block map" });
    root.style.maxHeight = "560px";
    const image = svg("image", { width: m.width * scale, height: m.height * scale, preserveAspectRatio: "none", class: "data" });
    image.setAttribute("href", m.image);
    image.style.imageRendering = "pixelated";
    root.append(image);
    for (const [x, y, dx, dy] of m.cameras) {
      const px = x * scale, py = (m.height - y) * scale;
      if (px < 0 || py < 0 || px > m.width * scale || py > m.height * scale) continue;
      root.append(svg("line", { x1: px, y1: py, x2: px + 9 * dx, y2: py - 9 * dy, stroke: "var(--c5)", "stroke-width": 1.4 }));
      root.append(svg("circle", { cx: px, cy: py, r: 2, fill: "var(--c5)" }));
    }
    const unit = m.width > 5000 ? [1000, "k"] : [1, ""];
    const box = el("div", {}, root, el("div", { class: "ramp", style: "margin-top:8px" }),
      el("div", { class: "note", style: "display:flex;justify-content:space-between" }, el("span", {}, "0"), el("span", {}, m.meaning), el("span", {}, FORMATS.count(m.top))));
    host.append(figure({
      title: "Blocks seen from above",
      note: `${FORMATS.count(m.blocks)} blocks over ${trim(m.width / unit[0])}${unit[1]} × ${trim(m.height / unit[0])}${unit[1]} units of the input; ${FORMATS.count(m.unused)} of them: ${m.unused_meaning}. Lines: cameras and where they look.`,
    }, box));
  }

  function quality(host) {
    if (!C.step) return;
    chart(host, { title: "Loss", x: C.step, unit: "plain", series: [{ name: "loss", y: C.loss }] });
    const series = [{ name: "training images", y: C.psnr, width: 1.2 }];
    const evaluated = (C.evaluations || []).filter((e) => e.psnr !== null);
    if (evaluated.length) series.push({ name: "test split", x: evaluated.map((e) => e.step), y: evaluated.map((e) => e.psnr), dots: true, color: COLORS[1] });
    chart(host, { title: "PSNR", x: C.step, unit: "db", zero: false, series, note: "A training point is the image of one step (or the mean of a few), seen before that step’s update." });
  }

  function compared(host) {
    const runs = D.runs;
    const over = (title, name, unit, extra = {}) => {
      const found = runs.map((r) => ({ name: r.name, x: r.curves.step || [], y: r.curves[name] || [] }));
      if (found.some((f) => f.y.length)) chart(host, { title, unit, series: found.filter((f) => f.y.length), ...extra, x: found.find((f) => f.y.length).x });
    };
    over("Loss", "loss", "plain");
    over("PSNR of training images", "psnr", "db", { zero: false });
    over("Time a step", "ms", "ms", { clip: true });
    over("Share of the time spent waiting for blocks", "stall_share", "share");
    for (const [title, key, unit] of [["Process memory", "rss", "bytes"], ["Arena in use", "arena", "bytes"]]) {
      const found = runs.filter((r) => (r.curves.tiers || {})[key]).map((r) => ({ name: r.name, x: r.curves.step, y: r.curves.tiers[key] }));
      if (found.length) chart(host, { title, unit, series: found, x: found[0].x });
    }
    for (const link of ["read", "upload"]) {
      const found = runs.filter((r) => (r.curves.links || {})[link]).map((r) => ({ name: r.name, x: r.curves.step, y: r.curves.links[link] }));
      if (found.length) chart(host, { title: `${D.link_names[link]}, bytes a step`, unit: "bytes", series: found, x: found[0].x });
    }
  }

  // -- theme --------------------------------------------------------------------------------------------------------
  const html = document.documentElement, button = at("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const set = (name) => { html.dataset.theme = name; button.textContent = name === "dark" ? "light" : "dark"; };
  set(dark.matches ? "dark" : "light");
  dark.addEventListener("change", (e) => set(e.matches ? "dark" : "light"));
  button.addEventListener("click", () => set(html.dataset.theme === "dark" ? "light" : "dark"));

  for (const [id, draw] of Object.entries({ memory, traffic, time, cameras, quality, compared })) if (at(id)) draw(at(id));
  html.dataset.drawn = document.querySelectorAll(".data").length;
})();
