//! Tables of `identity`, `plans` and `exempt`.

use super::{ANY_NUMBER, PRIORITY, TIME};
use crate::config::callers::keys::SHA256;
use crate::config::callers::{ADDRESS_SOURCE, HEADER_NAME, KEY_SET, NETWORK};
use crate::config::grammar::RATE;
use crate::config::section::Shape::{self, Like, List, Map, Number, OneOrList, Text};
use crate::config::section::{Field, Rule, Section};

pub(in crate::config) static IDENTITY: Section = Section::new(
    "identity",
    &[
        Field::new(
            "trusted_proxies",
            NETWORKS,
            "Peers whose client_ip header and user header are believed.",
        ),
        Field::new("client_ip", Map(&CLIENT_IP), "How trusted proxies name the caller's address."),
        Field::new(
            "ipv6_prefix",
            Number(16, 128),
            "IPv6 callers are one caller per network of this length.",
        )
        .or("64"),
        Field::new("user", Map(&USER), "How users are known."),
        Field::new("api_key", Map(&API_KEYS), "How API keys are known."),
    ],
);

pub(in crate::config) static CLIENT_IP: Section = Section::new(
    "client_ip",
    &[Field::new(
        "from",
        Like(&ADDRESS_SOURCE),
        "The one header that names the caller's address; the others are not forwarded.",
    )
    .or("x-forwarded-for")],
);

const NETWORKS: Shape = OneOrList(&Like(&NETWORK), 0);

pub(in crate::config) static USER: Section = Section::new(
    "user",
    &[
        Field::new("jwt", Map(&JWT), "By a signed token in Authorization: Bearer."),
        Field::new(
            "header",
            Like(&HEADER_NAME),
            "By a header that is believed only from trusted_proxies.",
        ),
    ],
)
.rules(&[Rule::One(&["jwt", "header"])]);

pub(in crate::config) static JWT: Section = Section::new(
    "jwt",
    &[
        Field::new("secret", Text, "A shared secret, for HS256; 32 bytes at least are advised.")
            .secret(),
        Field::new("jwks", Like(&KEY_SET), "A file with a JSON Web Key Set."),
        Field::new("leeway", TIME, "How far the clocks of issuer and gateway may differ.").or("5s"),
        Field::new("claim", Text, "The claim that names the user.").or("sub"),
        Field::new("plan_claim", Text, "The claim that names the user's plan."),
        Field::new("issuer", Text, "What 'iss' must be."),
        Field::new("audience", OneOrList(&Text, 0), "'aud' must name one of these."),
    ],
)
.rules(&[Rule::One(&["secret", "jwks"])]);

pub(in crate::config) static API_KEYS: Section = Section::new(
    "api_key",
    &[
        Field::new("header", Like(&HEADER_NAME), "The header that holds the key.").or("X-Api-Key"),
        Field::new("query", Text, "The query parameter that holds the key instead."),
        Field::new("keys", List(&Map(&API_KEY), 0), "The keys."),
        Field::new("keys_file", Text, "A YAML file with such a list of keys."),
    ],
)
.rules(&[Rule::AtMostOne(&["header", "query"]), Rule::One(&["keys", "keys_file"])]);

pub(in crate::config) static API_KEY: Section = Section::new(
    "an API key",
    &[
        Field::new("id", Text, "What limits, logs and 'exempt' call it.").required(),
        Field::new("sha256", Like(&SHA256), "The SHA-256 of the key; never the key itself.")
            .required()
            .secret(),
        Field::new("plan", Text, "The key's plan; otherwise the default plan."),
    ],
);

pub(in crate::config) static PLAN: Section = Section::new(
    "a plan",
    &[
        Field::new("burst", ANY_NUMBER, "The bucket's size for 'rate: plan'.").never_empty(),
        Field::new(
            "priority",
            PRIORITY,
            "How important requests of its callers are, where the route does not say.",
        )
        .never_empty(),
    ],
)
.others(
    Field::new(
        "NAME",
        Like(&RATE),
        "A rate; 'rate: plan' means the one called rate, 'rate: plan.NAME' this one.",
    )
    .never_empty(),
);

pub(in crate::config) static EXEMPT: Section = Section::new(
    "exempt",
    &[
        Field::new("ips", NETWORKS, "Callers by address."),
        Field::new("api_keys", OneOrList(&Text, 0), "Callers by the id of their API key."),
    ],
);
