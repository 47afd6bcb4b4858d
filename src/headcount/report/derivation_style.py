"""The style sheet of a derivation's page: system fonts, light and dark, one column on a phone."""

STYLE = """
:root{--ink:#16191d;--soft:#57606a;--paper:#fff;--card:#f6f8fa;--edge:#d0d7de;--link:#0b57b0;--warn:#8a4600;
--note:#0b57b0}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9aa5b1;--paper:#0d1117;--card:#161b22;--edge:#3d444d;
--link:#79b8ff;--warn:#f0b072;--note:#79b8ff}}
*{box-sizing:border-box}
html{scroll-behavior:smooth;-webkit-text-size-adjust:100%}
body{margin:0 auto;max-width:60rem;padding:1rem;background:var(--paper);color:var(--ink);
font:1rem/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;overflow-wrap:break-word}
h1{font-size:1.55rem;line-height:1.25;margin:.2em 0}h2{font-size:1.2rem;line-height:1.3;margin:0 0 .4em}
a{color:var(--link)}p{margin:.5em 0;max-width:46rem}
.skip{position:absolute;left:-999rem}.skip:focus{position:static}
:focus-visible{outline:3px solid var(--link);outline-offset:2px;border-radius:3px}
nav ol{columns:2 16rem;column-gap:3rem;margin:.3rem 0;padding-left:1.6rem}nav li{break-inside:avoid;padding:.12rem 0}
nav,section{margin:1.2rem 0}
.step{border-top:1px solid var(--edge);padding-top:1rem}
summary{cursor:pointer;font-weight:600;padding:.2rem 0}
.formula{overflow-x:auto;overflow-y:hidden;padding:.45rem .8rem .6rem;margin:.6rem 0;
border-left:4px solid var(--edge);background:var(--card)}
math{font-size:1.12rem;text-align:left;margin:.3rem 0;width:max-content;math-style:normal;
font-family:"STIX Two Math","Cambria Math","Latin Modern Math",math,serif}
.lines{list-style:none;margin:.2rem 0;padding:0}
.lines li,pre,code,.matrix,.scalar,.plain .number{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",
monospace}
.lines li{font-size:.85rem;padding:.08rem 0 .08rem 1.2rem;text-indent:-1.2rem}
.values{display:flex;flex-wrap:wrap;gap:.8rem;align-items:flex-start;margin:.8rem 0}
figure{margin:0}.quantity{border:1px solid var(--edge);border-radius:6px;background:var(--card);padding:.5rem .6rem;
max-width:100%}
figcaption{font-size:.9rem;margin-bottom:.3rem}figcaption span{color:var(--soft)}
.state{border:1px solid currentColor;border-radius:9px;padding:0 .45em;font-size:.8rem}
figcaption .changed{color:var(--warn);font-weight:700;border-width:2px}
.scroll{overflow-x:auto;max-width:100%}
.step>.scroll{background:linear-gradient(to right,var(--paper) 30%,transparent),
linear-gradient(to left,var(--paper) 30%,transparent) right,linear-gradient(to right,#8886,transparent),
linear-gradient(to left,#8886,transparent) right;background-repeat:no-repeat;
background-size:40px 100%,40px 100%,12px 100%,12px 100%;background-attachment:local,local,scroll,scroll}
table{border-collapse:collapse}caption{text-align:left;color:var(--soft);font-size:.85rem;padding:.2rem 0}
.matrix td,.matrix th{text-align:right;padding:.08rem .45rem;font-size:.85rem;font-variant-numeric:tabular-nums;
white-space:nowrap}
.matrix th{color:var(--soft);font-weight:400}
.matrix tbody td:first-of-type{border-left:1.5px solid var(--soft)}
.matrix tbody td:last-of-type{border-right:1.5px solid var(--soft)}
.plain{margin:.5rem 0;font-size:.92rem}
.plain th,.plain td{text-align:left;padding:.25rem .7rem .25rem 0;border-bottom:1px solid var(--edge);
vertical-align:top}
.plain thead th{border-bottom-width:2px}.plain .number{text-align:right;white-space:nowrap;
font-variant-numeric:tabular-nums}
.plain tbody th{font-weight:600}
.pair{display:flex;gap:.6rem;align-items:center}.arrow{font-size:1.3rem}
mark{background:none;color:var(--warn);font-weight:700;text-decoration:underline;text-underline-offset:3px}
.scalar{margin:.1rem 0}
sub,sup{line-height:0}.plain thead .number{font-family:inherit}.quantity .small{margin:.1rem 0}
code{font-size:.9em}.small{font-size:.88rem;color:var(--soft)}
.note{border-left:4px solid var(--note);padding-left:.8rem}.chapters{border-left-style:double;border-left-width:7px;
border-color:var(--warn)}
.chapters strong{color:var(--warn)}.note strong{margin-right:.3em}
.graph svg{display:block;width:100%;max-width:460px;height:auto}
pre{font-size:.78rem;line-height:1.35;margin:.4rem 0}
footer{border-top:1px solid var(--edge);margin-top:2rem;color:var(--soft);font-size:.9rem}footer h2{font-size:1rem;
margin-top:1rem}
@media (max-width:30rem){body{padding:.7rem}.pair{flex-direction:column;align-items:flex-start}
.arrow{transform:rotate(90deg)}
nav ol{columns:1}}
@media (prefers-reduced-motion:reduce){html{scroll-behavior:auto}*{transition:none!important;
animation:none!important}}
@media print{nav,.skip{display:none}.step{break-inside:avoid-page}.scroll,.formula{overflow:visible}}
"""
