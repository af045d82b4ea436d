"""Measures Ephemeris with the tests that Microsoft's Python SDK for Cosmos DB ships itself.

The tests are downloaded from PyPI, unchanged, into a directory outside the checkout. They import a
package that only Microsoft has; a shim of twenty lines stands in for it. What fails is compared
with yardstick_expected.toml, which says why: a new failure is an error, and so is a listed failure
that passes. Tests of what is out of scope, as their reasons say, do not count for the rate.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

VERSION = "4.17.1"
SDIST_SHA256 = "d692928a54d88163e96d41d8f899229ca2f6a6bf21973ece2bfc1f72d4b4edd8"
EMULATOR_KEY = (
    "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw=="
)

# Groups to choose from; each name in one stands for test_NAME.py and test_NAME_async.py.
GROUPS = {
    "gate": "ttl crud_database crud_container partition_key cosmos_responses encoding",
    "core": "ttl crud crud_container crud_database crud_response_payload_on_write_disabled"
    " crud_subpartition partition_key transactional_batch session headers cosmos_responses"
    " encoding resource_id auto_scale container_properties_cache none_options user_configs"
    " backwards_compatibility",
    "query": "query query_cross_partition orderby multi_orderby aggregate query_feed_range"
    " query_feed_range_multipartition query_response_headers read_items computed_properties"
    " feed_range",
    "feed": "change_feed change_feed_all_versions changefeed_partition_key_variation",
}

SHIM = {
    "devtools_testutils/__init__.py": "",
    "devtools_testutils/helpers.py": '''\
class IsLive:
    def __call__(self):
        return True


is_live = IsLive()
''',
    "devtools_testutils/azure_recorded_testcase.py": f'''\
import os


def get_credential(is_async=False, **_):
    return os.environ.get("ACCOUNT_KEY", "{EMULATOR_KEY}")
''',
}

MARKERS = "cosmosEmulator cosmosSearchQuery cosmosGSI semanticReranker unittest".split() + [
    prefix + name
    for prefix in ("cosmos", "cosmosAAD")
    for name in "Long Query Split MultiRegion CircuitBreaker CircuitBreakerMultiRegion"
    " PerPartitionAutomaticFailover".split()
]

HERE = Path(__file__).resolve().parent


def main():
    options = parse_arguments()
    home = prepare(options.cache)
    files = test_files(home, options)
    expected = tomllib.loads(options.expected.read_text())
    results, ended = run(home, files, options)
    return report(results, ended, expected, options)


def parse_arguments():
    parser = argument_parser(__doc__)
    parser.add_argument(
        "tests",
        nargs="*",
        help="test files by name, as 'ttl' (sync and async) or 'test_ttl.py'; groups: "
        + ", ".join(GROUPS),
    )
    parser.add_argument("--gate", action="store_true", help="the same as the group 'gate'")
    parser.add_argument(
        "--expected",
        type=Path,
        default=HERE / "yardstick_expected.toml",
        help="the list of failures that have a reason",
    )
    parser.add_argument(
        "--timeout", type=int, default=120, metavar="S", help="seconds for one test [default: 120]"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="show every failure's trace")
    return parser.parse_args()


def argument_parser(doc):
    """The arguments of all yardsticks."""
    cache_default = os.environ.get("EPHEMERIS_CACHE") or Path.home() / ".cache/ephemeris"
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--url",
        default=os.environ.get("EPHEMERIS_URL", "http://127.0.0.1:8081"),
        help="a node [default: EPHEMERIS_URL, else http://127.0.0.1:8081]",
    )
    parser.add_argument(
        "--key",
        default=os.environ.get("EPHEMERIS_KEY", EMULATOR_KEY),
        help="the account key [default: EPHEMERIS_KEY, else the emulator key]",
    )
    parser.add_argument(
        "--cache", type=Path, default=cache_default, help=f"where downloads are kept [default: {cache_default}]"
    )
    parser.add_argument(
        "--least",
        type=float,
        metavar="PERCENT",
        help="ask only that so many of those in scope pass, and not for the very ones expected: some"
        " have time limits, which are those of a machine for itself",
    )
    parser.add_argument(
        "--skips",
        type=int,
        default=sys.maxsize,
        metavar="COUNT",
        help="ask, too, that no more than so many skip themselves",
    )
    parser.add_argument("-k", dest="select", default="", help="only tests whose name has this")
    parser.add_argument(
        "--markdown", action="store_true", help="end with the table of docs/COMPATIBILITY.md"
    )
    return parser


def prepare(cache):
    """Unpacks the tests and lays the shim beside them; does nothing if that is done."""
    home = Path(cache) / f"yardstick-{VERSION}"
    if not (home / "tests").is_dir():
        home.mkdir(parents=True, exist_ok=True)
        unpack(download(home), home)
    for name, text in SHIM.items():
        path = home / "shim" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    lines = ["[pytest]", "asyncio_mode = auto", "markers ="]
    (home / "pytest.ini").write_text("\n".join(lines + [f"    {name}" for name in MARKERS]) + "\n")
    return home


def download(home):
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        + ["--no-binary", "azure-cosmos", "--dest", str(home), f"azure-cosmos=={VERSION}"],
        check=True,
    )
    archive = home / f"azure_cosmos-{VERSION}.tar.gz"
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != SDIST_SHA256:
        sys.exit(f"{archive} is not the published file: its SHA-256 is {digest}")
    return archive


def unpack(archive, home):
    prefix = f"azure_cosmos-{VERSION}/tests/"
    with tarfile.open(archive) as tar:
        members = [member for member in tar.getmembers() if member.name.startswith(prefix)]
        for member in members:
            member.name = "tests/" + member.name.removeprefix(prefix)
        tar.extractall(home, members=members, filter="data")


def test_files(home, options):
    wanted = list(options.tests)
    if options.gate:
        wanted.insert(0, "gate")
    if not wanted:
        sys.exit("which tests? Say --gate, or see --help")
    names = [name for word in wanted for name in GROUPS.get(word, word).split()]
    files = []
    for name in dict.fromkeys(names):
        stem = name.removeprefix("test_").removesuffix(".py")
        both = [f"test_{stem}.py"] if name.endswith(".py") else [
            f"test_{stem}.py",
            f"test_{stem}_async.py",
        ]
        found = [file for file in both if (home / "tests" / file).is_file()]
        if not found:
            sys.exit(f"the SDK has no tests named {name}")
        files += found
    return files


def run(home, files, options):
    """Runs each file in a process of its own, as a hang or a crash must not hide the others."""
    environment = dict(
        os.environ,
        ACCOUNT_HOST=options.url.rstrip("/") + "/",
        ACCOUNT_KEY=options.key,
        # Some tests use up what the SDK deprecates; that is for the SDK's authors to read.
        PYTHONWARNINGS="ignore::DeprecationWarning",
        PYTHONPATH=os.pathsep.join([str(home / "shim"), str(home / "tests"), str(home)]),
    )
    results, ended = {}, {}
    for file in files:
        output = home / "results" / f"{file}.xml"
        output.parent.mkdir(exist_ok=True)
        output.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["--timeout", str(options.timeout), f"--junit-xml={output}"]
        command += ["--show-capture=no", "--tb"]
        command += ["short" if options.verbose else "line", f"tests/{file}"]
        command += ["-k", options.select] if options.select else []
        print(f"\n== {file}", flush=True)
        started = time.monotonic()
        code = subprocess.run(command, cwd=home, env=environment, check=False).returncode
        ended[file] = (code, time.monotonic() - started)
        if output.is_file():
            results[file] = read_results(output)
    return results, ended


def read_results(output):
    """Maps each test to (outcome, message)."""
    results = {}
    for case in ElementTree.parse(output).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        outcome, message = "passed", ""
        for kind in ("failure", "error", "skipped"):
            found = case.find(kind)
            if found is not None:
                outcome = "skipped" if kind == "skipped" else "failed"
                message = found.get("message", "")
                break
        # A test may fail and then fail again while it is torn down: failed is what counts.
        if results.get(name, ("", ""))[0] != "failed":
            results[name] = (outcome, first_line(message))
    return results


def first_line(message):
    text = re.sub(r"\s+", " ", message)
    return text[:180]


def report(results, ended, expected, options):
    """Prints what passed and what did not; the code to exit with."""
    unexpected, repaired, reasons, broken = [], [], Counter(), 0
    heads = f"{'passed':>6} {'failed':>6} {'skipped':>7} {'expected':>8} {'seconds':>7}"
    print(f"\n{'file':<56} {heads}")
    for file, (code, seconds) in ended.items():
        outcomes = results.get(file, {})
        known = expected.get(file, {})
        counts = Counter(outcome for outcome, _ in outcomes.values())
        failed = {name for name, (outcome, _) in outcomes.items() if outcome == "failed"}
        matched = {name for name in failed if name in known}
        unexpected += [(file, name, outcomes[name][1]) for name in sorted(failed - matched)]
        repaired += [
            (file, name)
            for name, reason in known.items()
            if outcomes.get(name, ("",))[0] == "passed" and not reason.startswith("sometimes")
        ]
        reasons.update(known[name] for name in matched)
        if code not in (0, 1, 5) or not outcomes:
            broken += 1
            unexpected.append((file, "", f"ended with {code} and {len(outcomes)} results"))
        print(
            f"{file:<56} {counts['passed']:>6} {counts['failed']:>6} {counts['skipped']:>7} "
            f"{len(matched):>8} {seconds:>7.1f}"
        )
    total = Counter(outcome for file in results.values() for outcome, _ in file.values())
    print(f"{'all':<56} {total['passed']:>6} {total['failed']:>6} {total['skipped']:>7}")
    print(rate_text(total, reasons))
    for reason, count in reasons.most_common():
        print(f"\nexpected: {count} × {reason}", end="")
    print()
    for file, name, message in unexpected:
        print(f"UNEXPECTED FAILURE {file} {name}\n    {message}")
    for file, name in repaired:
        print(f"PASSES, so take it out of the list: {file} {name}")
    if options.markdown:
        print_table(results, expected)
    few_skip = total["skipped"] <= options.skips
    if not few_skip:
        print(f"\n{total['skipped']} skip themselves, and {options.skips} may")
    if options.least is not None:
        good = rate(total, reasons) >= options.least and not broken and few_skip
        print(f"\nyardstick: {'' if good else 'NOT '}{options.least:g} % or more")
    else:
        good = not unexpected and not repaired and few_skip
        print(f"\nyardstick: {'' if good else 'NOT '}as expected")
    return 0 if good else 1


def in_scope(total, reasons):
    """How many of those that ran are not of what Ephemeris leaves out."""
    left_out = sum(count for reason, count in reasons.items() if reason.startswith("out of scope"))
    return total["passed"] + total["failed"] - left_out


def rate(total, reasons):
    """How much of what is in scope passes, in percent."""
    return 100 * total["passed"] / max(in_scope(total, reasons), 1)


def rate_text(total, reasons):
    of = f"{total['passed']} of {in_scope(total, reasons)} in scope"
    return f"{of} ({rate(total, reasons):.1f} %)"


def print_table(results, expected):
    print("\n| File | Passed | Failed | Why |\n|---|---|---|---|")
    total, all_reasons = Counter(), Counter()
    for file, outcomes in results.items():
        counts = Counter(outcome for outcome, _ in outcomes.values())
        total += counts
        failed = [name for name, (outcome, _) in outcomes.items() if outcome == "failed"]
        reasons = Counter(expected.get(file, {}).get(name, "?") for name in failed)
        all_reasons += reasons
        why = "; ".join(
            f"{count} × {reason}" if len(failed) > 1 else reason
            for reason, count in reasons.items()
        )
        print(f"| {file} | {counts['passed']} | {counts['failed']} | {why} |")
    print(f"| all | {total['passed']} | {total['failed']} | {rate_text(total, all_reasons)} |")


if __name__ == "__main__":
    sys.exit(main())
