"""testssl.sh: protocols, preferences, the server's defaults, forward secrecy, known vulnerabilities."""

import json
import shutil

from kit import check, equal, expect, output

SECTIONS = ["--protocols", "--std", "--server-defaults", "--server-preference", "--fs", "--vulnerable"]

# Findings that come from the certificates and the name of this test, not from the gateway.
OF_THE_TEST = {
    "cert_revocation",  # The test's authority publishes neither a list of revoked certificates nor OCSP.
}
# Old protocols are LOW at most, but still not to be offered.
PROTOCOLS = {"SSLv2": "not offered", "SSLv3": "not offered", "TLS1": "not offered", "TLS1_1": "not offered",
             "TLS1_2": "offered", "TLS1_3": "offered with final"}


@check(seconds=110)
def nothing_is_found_above_low(lab):
    findings = lab.folder / "testssl.json"
    program = shutil.which("testssl") or shutil.which("testssl.sh")
    said = output(program, "--quiet", "--color", 0, "--warnings", "off", "--ip", "127.0.0.1", "--nodns", "none",
                        "--add-ca", lab.folder / "ca.pem", "--jsonfile", findings, *SECTIONS,
                        f"localhost:{lab.ports['tls']}", seconds=105)
    found = {each["id"]: each for each in json.loads(findings.read_text())}
    equal("protocols", {name: found.get(name, {}).get("finding") for name in PROTOCOLS}, PROTOCOLS)
    bad = [f"{each['id']} {each['severity']}: {each['finding']}" for each in found.values()
           if each["severity"] in ("MEDIUM", "HIGH", "CRITICAL", "FATAL") and each["id"] not in OF_THE_TEST]
    expect(not bad, "; ".join(bad))
    # The last of all: none was left out.
    expect("RC4" in found, f"it broke off: {said[-300:]}")
