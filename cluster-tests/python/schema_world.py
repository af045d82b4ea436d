"""What the examples of docs/openapi.yaml are about, and random requests that are about it, too."""

from hypothesis import strategies as st

CARTS = "/dbs/shop/colls/carts"
DEFINITION = {
    "id": "carts",
    "partitionKey": {"paths": ["/customer"], "kind": "Hash", "version": 2},
    "defaultTtl": 3600,
    "changeFeedPolicy": {"retentionDuration": 60},
}
SCRIPT = {"id": "discount", "body": "function () { return 1; }"}
PERMISSION = {"id": "read-carts", "permissionMode": "read", "resource": "dbs/shop/colls/carts"}
ADA = {"x-ms-documentdb-partitionkey": '["ada"]'}
UPSERT = {"x-ms-documentdb-is-upsert": "true"}

# Method, path, body and headers of the requests that make the world; each may be sent again.
WORLD = [
    ("POST", "/dbs", {"id": "shop"}, {}),
    ("POST", "/dbs/shop/colls", DEFINITION, {}),
    ("PUT", CARTS, DEFINITION, {}),
    ("POST", f"{CARTS}/docs", {"id": "1", "customer": "ada", "items": ["tea"]}, UPSERT),
    ("POST", f"{CARTS}/sprocs", SCRIPT, {}),
    ("POST", f"{CARTS}/triggers", SCRIPT, {}),
    ("POST", f"{CARTS}/udfs", SCRIPT, {}),
    ("POST", "/dbs/shop/users", {"id": "ada"}, {}),
    ("POST", "/dbs/shop/users/ada/permissions", PERMISSION, UPSERT),
]
# The offer 0001 is this container's. Apart from the rest, lest requests be throttled.
PRICED = [
    ("POST", "/dbs", {"id": "stock"}, {}),
    (
        "POST",
        "/dbs/stock/colls",
        DEFINITION | {"id": "priced"},
        {"x-ms-offer-throughput": "400"},
    ),
]
NAMES = {
    "database": "shop",
    "container": "carts",
    "item": "1",
    "script": "discount",
    "user": "ada",
    "permission": "read-carts",
    "offer": "0001",
}

# Stands for the etag that the path was last answered with.
LAST_ETAG = "the last one"
CONDITIONS = ["*", '"00000000-0000-0000-0000-000000000000"', LAST_ETAG]

# Headers that make a request what it is, by operation and, for new items and queries, content type.
QUERY = "application/query+json"
FEED = "/dbs/{database}/colls/{container}/docs"
ANYWHERE = {"x-ms-documentdb-query-enablecrosspartition": "true"}
ALL_VERSIONS = {
    "a-im": "Full-Fidelity Feed",
    "x-ms-cosmos-changefeed-wire-format-version": "2021-09-15",
}
BATCH = {"x-ms-cosmos-is-batch-request": "true"} | ADA
KINDS = {
    (f"GET {FEED}", None): [
        {},
        ADA,
        {"a-im": "Incremental Feed"},
        {"a-im": "Incremental Feed", "if-none-match": "*"},
        ALL_VERSIONS | {"if-none-match": "*"},
        ALL_VERSIONS | {"if-none-match": '"5"'},
    ],
    (f"GET {FEED}/{{item}}", None): [{}, ADA, ADA | {"if-none-match": LAST_ETAG}],
    ("GET /dbs/{database}/colls/{container}/pkranges", None): [{}, {"if-none-match": LAST_ETAG}],
    (f"POST {FEED}", "application/json"): [
        {},
        UPSERT,
        BATCH,
        BATCH | {"x-ms-cosmos-batch-atomic": "false"},
        BATCH | {"x-ms-cosmos-batch-atomic": "false", "x-ms-cosmos-batch-continue-on-error": "false"},
    ],
    (f"POST {FEED}", QUERY): [
        ANYWHERE,
        ADA,
        {
            "x-ms-cosmos-is-query-plan-request": "true",
            "x-ms-cosmos-supported-query-features": "Aggregate, Distinct, GroupBy, OrderBy, Top",
        },
    ],
}
QUERIES = [
    "SELECT * FROM c",
    "SELECT c.id FROM c WHERE c.customer = 'ada' ORDER BY c._ts DESC",
    "SELECT VALUE COUNT(1) FROM c",
    "SELECT DISTINCT VALUE c.customer FROM c",
    "SELECT c.customer, COUNT(1) AS n FROM c GROUP BY c.customer",
    "SELECT TOP 1 * FROM c",
    "SELECT VALUE i FROM c JOIN i IN c.items OFFSET 0 LIMIT 5",
    "SELECT 1",
    "SELECT * FROM c WHERE udf.f(c.id)",
    "SELECT * FROM c WHERE",
]
BATCHES = [
    [{"operationType": "Upsert", "resourceBody": {"id": "3", "customer": "ada"}}],
    [{"operationType": "Read", "id": "1"}, {"operationType": "Delete", "id": "none"}],
    [{"operationType": "Read", "id": "1", "partitionKey": '["bob"]'}, {"operationType": "Reed"}],
]
PATCHES = [
    {"operations": [{"op": "set", "path": "/count", "value": 1}]},
    {"operations": [{"op": "add", "path": "/a", "value": 1}], "condition": "from c where c.no"},
]


@st.composite
def steered(draw, cases):
    """A random request, most of the time about the world, and not lost in its headers."""
    mostly = st.integers(0, 5).map(lambda number: number < 5)
    aims, names_key, makes_sense = draw(mostly), draw(mostly), draw(mostly)
    case = draw(cases)
    if aims:
        known = {name: NAMES[name] for name in case.path_parameters if name in NAMES}
        case.path_parameters = case.path_parameters | known
    thin_out(draw, case)
    kinds = KINDS.get((case.operation.label, case.media_type))
    if kinds:
        case.headers.update(draw(st.sampled_from(kinds)))
    elif names_key and takes_key(case):
        case.headers.update(ADA)
    if makes_sense:
        give_sense(draw, case)
    return case


def kinds_of(case):
    """An example of the document as every kind of request it can be."""
    usual = [ADA] if takes_key(case) else [{}]
    for headers in KINDS.get((case.operation.label, case.media_type), usual):
        bodies = BATCHES if headers.items() >= BATCH.items() else [case.body]
        for body in bodies:
            kind = case.derive()
            kind.headers.update(headers)
            kind.body = body
            yield kind


def takes_key(case):
    """True if the request has a header for a partition key."""
    return any(parameter.name in ADA for parameter in case.operation.headers)


def thin_out(draw, case):
    """Leaves one or two of the headers, for a wrong value in any of them is a 400."""
    declared = sorted({parameter.name for parameter in case.operation.headers})
    kept = draw(st.lists(st.sampled_from(declared), max_size=2)) if declared else []
    for name in set(declared) - set(kept):
        case.headers.pop(name, None)
    for name in ("if-match", "if-none-match"):
        if name in kept:
            case.headers[name] = draw(st.sampled_from(CONDITIONS))


def give_sense(draw, case):
    """Puts into a body what the operation can do something with."""
    operation = case.operation
    if "x-ms-cosmos-is-batch-request" in case.headers:
        case.body = draw(st.sampled_from(BATCHES))
    if not isinstance(case.body, dict):
        return
    case.body = dict(case.body)
    if case.media_type == QUERY:
        case.body = {"query": draw(st.sampled_from(QUERIES))}
    elif operation.method.upper() == "PATCH":
        case.body = draw(st.sampled_from(PATCHES))
    elif "/docs" in operation.path:
        case.body["customer"] = "ada"
    elif operation.path.endswith("/permissions/{permission}"):
        case.body = dict(PERMISSION)
    elif operation.label == "PUT /dbs/{database}/colls/{container}":
        case.body["partitionKey"] = DEFINITION["partitionKey"]
    if operation.method.upper() == "PUT" and "id" in case.body:
        name = operation.path.rsplit("{", 1)[-1].rstrip("}")
        case.body["id"] = case.path_parameters[name]
