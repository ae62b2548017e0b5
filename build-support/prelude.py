# What every BUILD file can use. Pants evaluates this file: no imports here, and only hashable values.
#
# MAY_IMPORT is the one table of what may import what (the arrows of the design). Pants refuses a dependency that it
# does not allow, and build-support/checks/structure.py reads it too, to hold each pyproject.toml to the same arrows.

_CORE = "crates/ringcast-core-py"
_WIRE = "packages/ringcast-wire"
_SQLITE = "packages/ringcast-sqlite"
_GROUPSTORE = "packages/ringcast-groupstore"
_META = "packages/ringcast-meta"
_CLIENT = "packages/ringcast-client"
_SDK = "packages/ringcast"
_CLI = "packages/ringcast-cli"
_SPARK = "packages/ringcast-spark"
_SERVICE = "packages/ringcast-service"
_TESTKIT = "packages/ringcast-testkit"
_CONFIG = "services/config-service"
_AGENT = "services/heartbeat-agent"

MAY_IMPORT = (
    (_CORE, ()),
    (_WIRE, (_CORE,)),
    (_SQLITE, ()),
    (_GROUPSTORE, (_SQLITE,)),
    (_META, (_WIRE,)),
    (_CLIENT, (_CORE, _WIRE)),
    (_SDK, (_CORE, _WIRE, _SQLITE, _META, _CLIENT)),
    (_CLI, (_SDK, _CLIENT, _WIRE, _META)),
    (_SPARK, (_CORE, _WIRE, _CLIENT)),
    (_SERVICE, (_WIRE, _META)),
    (
        _TESTKIT,
        (_CORE, _WIRE, _SQLITE, _GROUPSTORE, _META, _CLIENT, _SDK, _CLI, _SPARK, _SERVICE, _CONFIG, _AGENT),
    ),
    (_CONFIG, (_CORE, _WIRE, _SQLITE, _SERVICE, _META)),
    (_AGENT, (_SDK, _CLIENT, _CORE, _WIRE, _SERVICE, _META)),
)

# The rooms of the larger distributions, from the ground up: what each imports besides itself. Modules at the top of the
# import package are its faces: they import every room, and a room imports the faces that stand here.
ROOMS = (
    (
        _WIRE,
        (
            ("_common", ()),
            ("_ownership", ("_common",)),
            ("_messages", ("_ownership", "_common")),
            ("_fetches", ("_messages", "_common")),
            ("_reports", ("_messages", "_common")),
            ("_stores", ("_reports", "_messages", "_common")),
            ("addresses", ("_common",)),
            ("_connections", ("addresses", "_common")),
            ("_encryption", ("_common",)),
            ("_schemas", ()),
            ("_metrics", ()),
            ("_proto", ()),
            # What others import.
            ("agent_token", ()),
            ("audit", ("_common",)),
            ("csv_reader", ("_common",)),
            ("nats_keys", ("_common",)),
            ("tracing", ("_common",)),
            ("owner_records", ("_common",)),
            ("ended_sessions", ("owner_records", "_common")),
            ("migrating", ("ended_sessions", "owner_records", "_ownership", "_common")),
            ("buckets", ("migrating", "_common")),
            ("bucket_reads", ("buckets", "_common")),
            ("permissions", ("_messages", "_common")),
            ("tokens", ("_connections", "_common")),
            ("worker_tokens", ("tokens", "permissions", "_connections", "_common")),
            ("key_ring", ("_encryption", "_common")),
            ("schemas", ("key_ring", "_schemas", "_common")),
            ("metrics", ("_metrics",)),
            ("prometheus", ("metrics", "addresses", "_common")),
            ("reports", ("_reports",)),
            ("dispatch", ("_proto",)),
            ("external_check", ("_proto",)),
            ("leases", ("_proto", "_common")),
            (
                "grpc",
                ("_proto", "_schemas", "_connections", "addresses", "_stores", "_messages", "_ownership", "_common"),
            ),
        ),
    ),
    (
        _GROUPSTORE,
        (
            ("_errors", ()),
            ("_events", ()),
            ("_types", ()),
            ("_checks", ("_types", "_errors")),
            ("_checksum", ("_types",)),
            ("_forks", ()),
            ("_health", ("_errors",)),
            ("_hub", ("_events", "_types")),
            ("_log", ("_checksum", "_types", "_errors")),
            ("_presence", ()),
            ("_render", ("_types", "_errors")),
            ("_source", ("_types",)),
            ("_readers", ("_health",)),
            ("_schema", ("_log", "_checksum", "_types")),
            ("_entries", ("_schema", "_checksum", "_checks", "_types")),
            ("_quotas", ("_entries", "_types", "_errors")),
            ("_reads", ("_entries", "_source", "_render", "_checksum", "_checks", "_types", "_errors")),
            ("_salvage", ("_entries", "_schema", "_log", "_checksum", "_types")),
            (
                "_integrity",
                ("_salvage", "_entries", "_schema", "_presence", "_log", "_checksum", "_types", "_events", "_errors"),
            ),
            ("_engine", ("_integrity", "_quotas", "_readers", "_presence", "_hub", "_health", "_forks", "_types")),
            ("_changes", ("_engine", "_entries", "_log", "_types", "_errors")),
            ("_view", ("_engine", "_reads", "_quotas", "_entries", "_source", "_log", "_checks")),
            ("_watch", ("_engine", "_log", "_hub", "_types", "_errors")),
            ("_purge", ("_changes", "_engine", "_events", "_checks")),
            ("_writes", ("_changes", "_reads", "_checks", "_types")),
            ("_aio_verbs", ("_writes", "_reads", "_types")),
            (
                "_namespace",
                (
                    "_writes",
                    "_purge",
                    "_watch",
                    "_view",
                    "_changes",
                    "_engine",
                    "_entries",
                    "_source",
                    "_hub",
                    "_types",
                ),
            ),
            (
                "_store",
                (
                    "_namespace",
                    "_writes",
                    "_purge",
                    "_watch",
                    "_view",
                    "_changes",
                    "_engine",
                    "_integrity",
                    "_entries",
                    "_source",
                    "_log",
                    "_hub",
                    "_types",
                    "_errors",
                ),
            ),
        ),
    ),
    (
        _CLI,
        (
            ("_common", ()),
            ("_local", ("_common",)),
            ("_rows", ("_common",)),
            ("_stores", ("_common",)),
            ("_fleet", ("_common",)),
            ("_access", ("_common",)),
            ("_releases", ("_rows", "_common")),
            ("_diagnosis", ("_releases", "_fleet", "_common")),
            # Names the modules of commands, and imports one when it is called.
            ("_app", ("_common",)),
        ),
    ),
    (
        _SDK,
        (
            ("_common", ()),
            ("metrics", ("_common",)),
            ("_protocol", ("_common",)),
            ("_bus", ("_protocol", "_common")),
            ("_cache", ("_protocol", "_common")),
            ("_coordination", ("_bus", "_protocol", "_common")),
            ("_delivery", ("_bus", "_protocol", "_common")),
            ("_worker", ("_coordination", "_delivery", "_cache", "_bus", "_protocol", "_common", "metrics")),
            ("_dapr", ("_worker", "_bus", "_common")),
            ("aio", ("_dapr",)),
        ),
    ),
    (
        _CLIENT,
        (
            ("_common", ()),
            ("_bulk", ("_common",)),
            ("_calls", ("_bulk", "_common")),
            ("_stores", ("_calls", "_common")),
            ("_access", ("_calls", "_common")),
            ("_sync", ("_calls", "_bulk", "_common")),
            ("_releases", ("_sync", "_calls", "_bulk", "_common")),
            ("_fetches", ()),
            ("_blocking", ("_fetches", "_common")),
            ("_client", ("_releases", "_sync", "_access", "_stores", "_calls", "_bulk", "_common")),
        ),
    ),
    (
        _SPARK,
        (
            ("_common", ()),
            ("_client", ("_common",)),
            ("_batch", ("_client", "_common")),
            ("_stream", ("_batch", "_client", "_common")),
            ("_source", ("_stream", "_batch", "_common")),
            ("_defaults", ("_source", "_common")),
            ("pipeline", ("_batch", "_client", "_common")),
        ),
    ),
    (
        _CONFIG,
        (
            ("caller", ()),
            ("permits", ()),
            ("turns", ()),
            ("broker_state", ()),
            ("refusals", ("caller",)),
            ("watched_file", ()),
            ("security", ("watched_file",)),
            ("oidc", ("watched_file", "caller")),
            ("logins", ("oidc", "security", "caller")),
            ("repository", ("permits",)),
            ("endpoints", ()),
            ("promql", ("endpoints",)),
            ("external_check", ("endpoints", "repository", "turns")),
            ("telemetry", ("repository", "refusals", "promql", "external_check", "broker_state")),
            ("member", ("telemetry",)),
            ("maintenance", ("telemetry", "repository")),
            ("audit", ("maintenance", "repository", "caller")),
            ("access", ("audit", "repository", "refusals", "caller")),
            ("callout", ("access", "telemetry", "watched_file", "caller")),
            ("writes", ("telemetry", "repository", "permits", "caller")),
            ("nats", ("telemetry", "repository", "broker_state")),
            ("histories", ("nats", "telemetry", "repository")),
            ("migrations", ("repository",)),
            ("lifecycle", ("maintenance", "migrations", "nats", "repository")),
            ("policies", ("repository",)),
            ("value_schemas", ("telemetry", "repository")),
            (
                "releases",
                (
                    *("promql", "external_check", "nats", "histories", "writes", "value_schemas", "telemetry"),
                    "repository",
                ),
            ),
            (
                "handlers",
                (
                    *("lifecycle", "histories", "nats", "writes", "value_schemas", "telemetry", "repository"),
                    *("permits", "caller"),
                ),
            ),
            (
                "grpc",
                (
                    *("handlers", "lifecycle", "policies", "value_schemas", "releases", "nats", "writes"),
                    *("telemetry", "repository"),
                    *(
                        "access",
                        "audit",
                        "logins",
                        "security",
                        "refusals",
                        "permits",
                        "caller",
                        "broker_state",
                        "turns",
                    ),
                ),
            ),
        ),
    ),
    (
        _AGENT,
        (
            ("_proto", ()),
            ("errors", ()),
            ("clients", ()),
            ("config", ()),
            ("opening", ()),
            ("followers", ("clients", "config")),
            ("leases", ("config",)),
            ("telemetry", ("leases",)),
            ("dispatch", ("telemetry", "followers", "opening", "config", "clients", "errors", "_proto")),
            ("status", ("dispatch", "leases", "followers", "config")),
            (
                "dapr",
                ("status", "dispatch", "telemetry", "followers", "opening", "config", "clients", "errors", "_proto"),
            ),
        ),
    ),
)

# Packages of others that only one room knows, so that the rest does without them, as the simulation does without NATS.
SEAMS = ((_SDK, "nats", "_bus"),)

# `ringcast up` starts the config service as a process of its own: an optional extra in pyproject.toml, never an import.
MAY_LAUNCH = ((_CLI, (_CONFIG,)),)


def _source_dir(directory):
    return f"{directory}/python" if directory == _CORE else f"{directory}/src"


def _sources_of(directories):
    return tuple(f"//{_source_dir(directory)}/**" for directory in directories)


def _rules_of_rooms(directory, besides):
    """A rule for each room of a distribution: itself, the rooms that it may import, and what is `besides`."""
    source_dir = _source_dir(directory)
    return tuple(
        (
            # A room is a folder or a module.
            ({"path": f"//{source_dir}/*/{room}/**"}, {"path": f"//{source_dir}/*/{room}.py"}),
            *(f"//{source_dir}/*/{other}{end}" for other in (room, *allowed) for end in ("/**", ".py")),
            # The package itself, which imports every face: no room imports from it, but each lies in it.
            f"//{source_dir}/*/__init__.py",
            f"//{source_dir}:data",
            *besides,
            "!*",
        )
        for room, allowed in dict(ROOMS).get(directory, ())
    )


def shipped_distributions():
    """What starts or imports any of our distributions depends on: their sources and their versions."""
    shipped = [directory for directory, _ in MAY_IMPORT if directory != _TESTKIT]
    return [
        *(f"//{_source_dir(directory)}:src" for directory in shipped),
        *(f"//{directory}:docs" for directory in shipped),
    ]


def distribution(native=False):
    """The files that describe the distribution in this directory; a native one is compiled from Rust."""
    licences = ["LICENSE", *(["THIRD-PARTY.md"] if native else [])]
    resources(name="docs", sources=["pyproject.toml", "README.md", "CHANGELOG.md", *licences])


def sources(data=()):
    """What the distribution ships, in its `src` directory: it imports what MAY_IMPORT says, and nothing else of ours.

    `data` are globs of further files that ship beside the modules.
    """
    here = str(build_file_dir().parent)
    others = _sources_of(dict(MAY_IMPORT)[here])
    __dependencies_rules__(
        *_rules_of_rooms(here, (others,)),
        ("*", f"//{_source_dir(here)}/**", others, "!*"),
    )
    if here == _TESTKIT:
        __dependents_rules__(
            ("*", f"//{here}/**", "//conftest.py", "tests/**", "benchmarks/**", "!*"),
        )
    python_sources(name="src", sources=["**/*.py", "**/*.pyi"], dependencies=[":data"])
    resources(name="data", sources=["**/py.typed", *data])


def tests(launches=(), processes=()):
    """The tests of a distribution, in its `tests` directory.

    They import what the distribution may import, and the testkit. `launches` are the distributions that they start
    as processes, so that no import tells Pants of them. All files run in one process, and share the fixtures of the
    session: to start Python and the servers for each file costs more than most of them do. Where they take more than
    three or four minutes, `processes` are globs of names: the files of each have a process, and the others one more.
    """
    here = str(build_file_dir().parent)
    allowed = dict(MAY_IMPORT)[here]
    __dependencies_rules__(
        (
            "*",
            f"//{here}/**",
            _sources_of((*allowed, _CORE, _TESTKIT)),
            # Started, not imported: an import leads to a file's own target, never to the one that generates it.
            tuple(f"//{_source_dir(directory)}:src" for directory in launches),
            tuple(f"//{directory}:docs" for directory in launches),
            "//tests/conformance/**",
            "//conftest.py",
            "!*",
        ),
    )
    python_test_utils(
        name="test_utils",
        sources=["**/*.py", "!**/test_*.py"],
        dependencies=[f"//{here}:docs"],
    )
    globs = [f"**/{names}" for names in (*processes, "test_*.py")]
    for number, names in enumerate(globs):
        name = f"tests{number}" if number < len(processes) else "tests"
        python_tests(
            name=name,
            sources=[names, *(f"!{earlier}" for earlier in globs[:number])],
            dependencies=[
                ":test_utils",
                f"//{here}:docs",
                f"//{_source_dir(here)}:src",
                *(f"//{_source_dir(directory)}:src" for directory in launches),
                *(f"//{directory}:docs" for directory in launches),
            ],
            batch_compatibility_tag=f"{here}:{name}",
        )
