"""h2load: many streams at once."""

import re

from kit import check, equal, expect, output

WAYS = {"h2c": "plain", "TLS": "tls"}


@check(over=WAYS)
def two_thousand_requests_on_eight_connections_succeed(lab, way):
    said = output("h2load", "-n", 2000, "-c", 8, "-m", 32, "--connect-to", f"127.0.0.1:{lab.ports[WAYS[way]]}",
                     f"{lab.url(WAYS[way])}/echo")
    told = "\n".join(re.findall(r"^(?:requests|status codes):.*", said, re.M)) or said
    equal("the protocol", re.findall(r"^Application protocol: (\S+)", said, re.M), ["h2" if way == "TLS" else "h2c"])
    for wanted in ("2000 succeeded, 0 failed, 0 errored", "2000 2xx, 0 3xx, 0 4xx, 0 5xx"):
        expect(wanted in told, told)
