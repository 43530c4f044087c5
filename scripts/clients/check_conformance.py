"""HTTP/2 as the standard has it: the cases of h2spec, all of them, each frame by itself and all at once."""

import sys
from pathlib import Path

from kit import check, expect, output

SUITE = Path(__file__).parent / "http2_conformance.py"
WAYS = {"TLS": [], "TLS frame by frame": ["--one-by-one"]}


@check(over=WAYS)
def all_147_cases_of_http2_pass(lab, way):
    said = output(sys.executable, SUITE, "--port", lab.ports["tls"], "--tls", "--path", "/echo", *WAYS[way])
    expect("147 cases, 147 passed" in said, said)
