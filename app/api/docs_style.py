"""How /docs looks: light and dark, from a telephone to a wide screen, with the fonts that are there."""

STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --paper: #fff; --soft: #59636e; --line: #d1d9e0; --shade: #f6f8fa;
  --link: #0550ae; --get: #0550ae; --post: #8a4600; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --soft: #9ea7b3; --line: #3d444d;
  --shade: #161b22; --link: #79b8ff; --get: #79b8ff; --post: #f0a860; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
a { color: var(--link); }
h1 { margin: 0 0 .5rem; font-size: 1.75rem; }
h2 { margin: 3rem 0 .25rem; font-size: 1.35rem; }
h3 { margin: 0; font-size: 1.05rem; }
h4 { margin: 1.25rem 0 .25rem; font-size: .95rem; }
p { margin: .4rem 0; }
code, pre { font: .875em/1.5 ui-monospace, monospace; }
pre { margin: .4rem 0; padding: .6rem .8rem; background: var(--shade); border: 1px solid var(--line);
  border-radius: .4rem; white-space: pre-wrap; }
nav ul { list-style: none; margin: .25rem 0; padding: 0; }
nav strong { display: block; margin-top: .75rem; }
article { margin: 1.25rem 0; padding: 1rem; border: 1px solid var(--line); border-radius: .5rem; }
article:target, tr:target { outline: 2px solid var(--link); }
.method { display: inline-block; min-width: 3.2em; font-weight: 700; }
.get { color: var(--get); }
.post { color: var(--post); }
.soft { color: var(--soft); }
table { width: 100%; border-collapse: collapse; font-size: .925rem; }
th, td { padding: .3rem .6rem .3rem 0; text-align: left; vertical-align: top; border-top: 1px solid var(--line); }
thead th { border-top: 0; font-weight: 600; color: var(--soft); }
th:first-child, td:first-child { width: 26%; }
tbody th { font-weight: 400; }
summary { margin: .4rem 0; cursor: pointer; color: var(--soft); }
@media (max-width: 40rem) { th:first-child, td:first-child { width: 22%; } table { font-size: .85rem; } }
"""
