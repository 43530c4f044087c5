//! Tables of `listen`, `admin`, `headers`, `server`, `logging` and `telemetry`.

use super::{NONE, PERCENT, SIZE_OR_NONE, TIME, TIME_OUT};
use crate::config::callers::HEADER_NAME;
use crate::config::edge::{ADDRESS, FILE_TO_WRITE, STYLES, TOKEN};
use crate::config::grammar::SIZE;
use crate::config::logging::{ACCESS, FORMATS};
use crate::config::section::Shape::{
    Either, Headers, Like, Map, Number, OneOrList, Text, Truth, Words,
};
use crate::config::section::{Field, Rule, Section, words};
use crate::config::telemetry::COLLECTOR;

pub(in crate::config) static LISTENER: Section = Section::new(
    "a listener",
    &[
        Field::new("address", Like(&ADDRESS), "Where to listen.").required(),
        Field::new(
            "tls",
            Map(&LISTENER_TLS),
            "Encrypts: TLS 1.2 and 1.3, with ALPN for h2 and http/1.1.",
        )
        .never_empty(),
        Field::new(
            "proxy_protocol",
            Truth,
            "Every connection begins with a PROXY header that names the caller.",
        )
        .or("false"),
    ],
);

pub(in crate::config) static LISTENER_TLS: Section = Section::new(
    "a listener's TLS",
    &[
        Field::new(
            "certificates",
            OneOrList(&Map(&CERTIFICATE), 1),
            "Certificates; a caller is shown the one for the name it asks for.",
        )
        .required(),
        Field::new(
            "client_ca",
            Text,
            "A PEM file: callers must show a certificate that one of these has signed.",
        )
        .never_empty(),
    ],
);

pub(in crate::config) static CERTIFICATE: Section = Section::new(
    "a certificate",
    &[
        Field::new("cert", Text, "A PEM file with the certificate and its chain.").required(),
        Field::new("key", Text, "A PEM file with the certificate's key.").required(),
    ],
);

pub(in crate::config) static ADMIN: Section = Section::new(
    "admin",
    &[
        Field::new("address", Like(&ADDRESS), "Where to listen.").required(),
        Field::new(
            "token",
            Like(&TOKEN),
            "What requests present as a bearer token; obligatory beyond loopback.",
        )
        .secret(),
        Field::new(
            "overrides",
            Like(&FILE_TO_WRITE),
            "A file that bans and grants of the admin API are written to.",
        ),
    ],
)
.rules(&[Rule::Unless("address", Like(&crate::config::edge::LOOPBACK), "token")]);

pub(in crate::config) static HEADERS: Section = Section::new(
    "headers",
    &[
        Field::new("style", Words(|| words(&STYLES)), "Which rate-limit headers are sent.")
            .or("both"),
        Field::new(
            "retry_jitter",
            PERCENT,
            "Up to this share is added to Retry-After, so that callers do not all return at once.",
        )
        .or("10%"),
    ],
);

pub(in crate::config) static SERVER: Section = Section::new(
    "server",
    &[
        Field::new("max_header_bytes", Like(&SIZE), "A request's head: 8KiB to 1MiB.").or("64KiB"),
        Field::new("max_headers", Number(1, 1000), "Header lines of a request.").or("100"),
        Field::new("max_uri_bytes", Like(&SIZE), "A request's target: 256B to 64KiB.").or("8KiB"),
        Field::new("max_connections", CONNECTIONS, "Connections of callers in all.").or("20000"),
        Field::new(
            "max_connections_per_ip",
            Either(&[CONNECTIONS, NONE]),
            "Connections of one address: half of all unless it is given; 'none' lifts it.",
        ),
        Field::new("handshake_timeout", TIME_OUT, "For a PROXY header and the TLS handshake.")
            .or("10s"),
        Field::new("header_timeout", TIME_OUT, "For the head of a request.").or("10s"),
        Field::new("body_timeout", TIME_OUT, "For the next KiB of a request's body.").or("30s"),
        Field::new(
            "idle_timeout",
            TIME_OUT,
            "How long a connection may wait for its next request, or leave untaken what is sent.",
        )
        .or("75s"),
        Field::new("max_body_bytes", SIZE_OR_NONE, "A request's body; 'none' lifts it.")
            .or("10MiB"),
        Field::new(
            "shutdown_grace",
            TIME,
            "How long requests in flight may take after a signal to stop.",
        )
        .or("30s"),
    ],
);

const CONNECTIONS: crate::config::section::Shape = Number(1, u64::MAX);

pub(in crate::config) static LOGGING: Section = Section::new(
    "logging",
    &[Field::new(
        "access",
        Either(&[Words(|| words(&ACCESS)), Map(&ACCESS_LOG)]),
        "The access log, on stdout; 'off' turns it off.",
    )
    .or("on")],
);

pub(in crate::config) static ACCESS_LOG: Section = Section::new(
    "the access log",
    &[
        Field::new("format", Words(|| words(&FORMATS)), "How a line is written.").or("json"),
        Field::new("sample", Map(&SAMPLE), "How many requests are logged."),
        Field::new(
            "headers",
            OneOrList(&Like(&HEADER_NAME), 0),
            "Headers of requests that are logged, such as those that limits count by.",
        ),
    ],
);

pub(in crate::config) static SAMPLE: Section = Section::new(
    "sample",
    &[
        Field::new("allowed", PERCENT, "The share of admitted requests that is logged.").or("100%"),
        Field::new("rejected", PERCENT, "The share of rejected requests that is logged.").or("1%"),
    ],
);

pub(in crate::config) static TELEMETRY: Section = Section::new(
    "telemetry",
    &[
        Field::new(
            "otlp",
            Like(&COLLECTOR),
            "The collector that spans are sent to, OTLP over HTTP; without one there are none.",
        ),
        Field::new(
            "sample",
            PERCENT,
            "The share of traces that is recorded, unless a trusted proxy has decided.",
        )
        .or("100%"),
        Field::new("begin", Truth, "Whether a trace begins here that nobody has begun before.")
            .or("true"),
        Field::new("service_name", Text, "What the spans say that they are of."),
        Field::new("headers", Headers, "Sent with every batch of spans.").secret(),
    ],
);
