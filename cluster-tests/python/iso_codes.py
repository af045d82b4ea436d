"""Loads 14,000 real documents into Ephemeris and proves that they are kept, and expire, as told.

The documents are the ISO codes that Debian's package iso-codes brings along:

  countries   no time to live: they are there at the end, every one of them
  languages   each with a `ttl` of its own (--language-ttl)
  codes       subdivisions, currencies, scripts and former countries, under the container's
              `defaultTtl` (--default-ttl)

Concurrent writers create them one by one through the azure-cosmos SDK. Half-way the node that leads
the partition of the languages is killed, and started again later. Every document is read back
through another node and compared. Then each node is asked, many times, what is left: before its
second a document must be there, from its second on it must not.

Ends with a table, and with exit code 1 if anything was not as it should be.
"""

import argparse
import collections
import itertools
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from azure.core.exceptions import AzureError
from azure.cosmos import CosmosClient, PartitionKey
from azure.cosmos.exceptions import CosmosResourceExistsError, CosmosResourceNotFoundError
from tqdm import tqdm

import cluster

DATABASE = "iso-codes"
# Documents that one writer creates before it reads them back in one request.
CHUNK = 100
# How often a creation is tried again: a leader's death takes one or two seconds.
TRIES_MAX = 8
# Nodes and this script share a clock; a request may see what was there when it began.
LATE_SECONDS_MAX = 0.5
POLL_SECONDS = 0.02
# How long before its second a document is watched.
WATCH_SECONDS = 0.2
FOREVER = float("inf")


def main():
    options = parse_arguments()
    running = cluster.connect()
    urls = running.urls if running else {1: cluster.URL}
    clients = {node: connect(node, url, urls) for node, url in urls.items()}
    share_session(list(clients.values()))
    containers = create_containers(next(iter(clients.values())), options)
    databases = {node: client.get_database_client(DATABASE) for node, client in clients.items()}
    ledgers = {
        name: Ledger(
            name,
            container,
            {node: database.get_container_client(name) for node, database in databases.items()},
        )
        for name, container in containers.items()
    }
    killer = Killer(running if options.kill_leader else None)
    if options.kill_leader and not running:
        print("no cluster of this checkout runs: nothing will be killed")

    loaded = threading.Event()
    with ThreadPoolExecutor(len(ledgers) * len(urls)) as pool:
        watchers = [
            pool.submit(ledger.watch, node, loaded) for ledger in ledgers.values() for node in urls
        ]
        try:
            load(read_documents(options), ledgers, killer, options.writers)
            killer.join()
            for ledger in ledgers.values():
                ledger.compare_all()
        finally:
            loaded.set()
        watch_counts(ledgers.values())
        for watcher in watchers:
            watcher.result()
    for ledger in ledgers.values():
        ledger.compare_all()

    print_table(ledgers)
    problems = [problem for ledger in ledgers.values() for problem in ledger.problems]
    problems += killer.problems
    for problem in problems[:20]:
        print(f"WRONG: {problem}")
    print(f"iso-codes: {len(problems)} problems" if problems else "iso-codes: all as it should be")
    return 1 if problems else 0


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="The cluster is the one that docker-compose runs for this checkout, or the one in "
        "the directory EPHEMERIS_LOCAL_CLUSTER; without either, the node at EPHEMERIS_URL "
        f"[{cluster.URL}]. EPHEMERIS_KEY is the account key [the emulator's].",
    )
    parser.add_argument(
        "--kill-leader",
        action="store_true",
        default=True,
        help="kill a leader half-way, where there is a cluster: the default",
    )
    parser.add_argument(
        "--no-kill", dest="kill_leader", action="store_false", help="leave all nodes alone"
    )
    parser.add_argument(
        "--language-ttl", type=int, default=10, metavar="S", help="seconds [default: 10]"
    )
    parser.add_argument(
        "--default-ttl", type=int, default=30, metavar="S", help="seconds [default: 30]"
    )
    parser.add_argument("--writers", type=int, default=16, help="at a time [default: 16]")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("/usr/share/iso-codes/json"),
        help="where the JSON files are [default: /usr/share/iso-codes/json]",
    )
    return parser.parse_args()


def connect(node, url, urls):
    """A client that asks this node, and another one only while this one is away."""
    others = [f"node{other}" for other in urls if other != node]
    return CosmosClient(
        url,
        cluster.KEY,
        multiple_write_locations=True,
        preferred_locations=[f"node{node}", *others],
    )


def share_session(clients):
    """Puts all clients into one session, so that each sees what any of them wrote or was told.

    Otherwise a node may show another client a state from before: the account's level is Session.
    """
    for client in clients[1:]:
        client.client_connection.Session = clients[0].client_connection.Session


def create_containers(client, options):
    try:
        client.delete_database(DATABASE)
    except CosmosResourceNotFoundError:
        pass
    database = client.create_database(DATABASE)
    return {
        "countries": database.create_container("countries", PartitionKey("/id")),
        "languages": database.create_container(
            "languages", PartitionKey("/initial"), default_ttl=-1
        ),
        "codes": database.create_container(
            "codes", PartitionKey("/standard"), default_ttl=options.default_ttl
        ),
    }


def read_documents(options):
    """Pairs of container and documents."""
    language = {"ttl": options.language_ttl}
    sources = [
        ("countries", "3166-1", "alpha_2", {}),
        ("codes", "3166-2", "code", {}),
        ("codes", "3166-3", "alpha_4", {}),
        ("codes", "4217", "alpha_3", {}),
        ("codes", "15924", "alpha_4", {}),
        ("languages", "639-2", "alpha_3", language),
        ("languages", "639-3", "alpha_3", language),
        ("languages", "639-5", "alpha_3", language),
    ]
    documents = []
    for container, standard, code, extra in sources:
        file = options.data / f"iso_{standard}.json"
        if not file.is_file():
            sys.exit(f"{file} is missing: apt-get install iso-codes")
        for entry in json.loads(file.read_text())[standard]:
            identity = {"id": f"{standard}:{entry[code]}", "standard": standard}
            initial = {"initial": entry[code][0]} if container == "languages" else {}
            documents.append((container, entry | identity | initial | extra))
    return documents


@dataclass
class Ledger:
    """What one container was told, and what is wrong with what it answers."""

    name: str
    container: object
    # The same container, asked through each node.
    views: dict
    documents: dict = field(default_factory=dict)
    due: dict = field(default_factory=dict)
    read_back: int = 0
    retries: int = 0
    polls: int = 0
    watched: int = 0
    late: float = 0.0
    problems: list = field(default_factory=list)

    def __post_init__(self):
        self.definition = self.container.read()
        self.key = self.definition["partitionKey"]["paths"][0][1:]
        self.elsewhere = itertools.cycle(self.views.values())

    def create(self, document):
        """Creates a document, whatever happens to nodes meanwhile."""
        for attempt in range(TRIES_MAX):
            try:
                created = self.container.create_item(document)
                break
            except CosmosResourceExistsError:
                # An earlier attempt did it, though we were told otherwise.
                created = self.container.read_item(document["id"], document[self.key])
                break
            except AzureError:
                self.retries += 1
                if attempt == TRIES_MAX - 1:
                    raise
                time.sleep(0.1 * 2**attempt)
        self.documents[document["id"]] = document
        ttl = document.get("ttl", self.definition.get("defaultTtl", -1))
        self.due[document["id"]] = created["_ts"] + ttl if ttl > 0 else FOREVER

    def compare_some(self, ids):
        """Reads documents that are alive back through another node."""
        view = next(self.elsewhere)
        wanted = [(id_, self.documents[id_][self.key]) for id_ in ids]
        self.compare(ids, lambda: read_items(view, wanted))

    def compare_all(self):
        """Reads whatever is alive through every node."""
        for view in self.views.values():
            self.compare(self.documents, lambda view=view: list(view.read_all_items()))

    def compare(self, ids, read):
        asked = time.time()
        found = {item["id"]: item for item in read()}
        answered = time.time()
        for id_ in ids:
            item = found.pop(id_, None)
            if item is None:
                if self.due[id_] > answered:
                    self.problems.append(f"{id_} is missing {self.due[id_] - answered:.2f} s early")
                continue
            if self.due[id_] + LATE_SECONDS_MAX < asked:
                self.problems.append(f"{id_} is there {asked - self.due[id_]:.2f} s late")
            plain = {name: value for name, value in item.items() if not name.startswith("_")}
            if plain != self.documents[id_]:
                self.problems.append(f"{id_} is {plain}, not {self.documents[id_]}")
            self.read_back += 1
        self.problems += [f"{id_} was never written" for id_ in found]

    def poll_count(self, node):
        """Compares a count with what must and what may be alive."""
        query = "SELECT VALUE COUNT(1) FROM c"
        asked = time.time()
        count = next(iter(self.views[node].query_items(query, enable_cross_partition_query=True)))
        answered = time.time()
        must = sum(due > answered for due in self.due.values())
        may = sum(due > asked - LATE_SECONDS_MAX for due in self.due.values())
        if not must <= count <= may:
            self.problems.append(f"node {node} counts {count} {self.name}, not {must} to {may}")
        self.polls += 1

    def watch(self, node, loaded):
        """Watches one document after the other expire, until all have."""
        while True:
            ended = loaded.is_set()
            soon = time.time() + WATCH_SECONDS
            still = {id_: due for id_, due in self.due.copy().items() if soon < due < FOREVER}
            if still:
                self.watch_item(node, min(still, key=still.get))
            elif ended:
                return
            else:
                time.sleep(POLL_SECONDS)

    def watch_item(self, node, id_):
        """Asks for one document from shortly before its second until it is gone."""
        due, key = self.due[id_], self.documents[id_][self.key]
        time.sleep(max(0, due - WATCH_SECONDS - time.time()))
        while True:
            asked = time.time()
            self.polls += 1
            try:
                self.views[node].read_item(id_, key)
                if asked > due + LATE_SECONDS_MAX:
                    self.problems.append(f"node {node}: {id_} is there {asked - due:.3f} s late")
                    return
            except CosmosResourceNotFoundError:
                answered = time.time()
                if answered < due:
                    self.problems.append(f"node {node}: {id_} is gone {due - answered:.3f} s early")
                self.watched += 1
                self.late = max(self.late, asked - due)
                return
            except AzureError:
                # A node is dead: who asks now learns nothing.
                pass
            time.sleep(POLL_SECONDS)


class Killer:
    """Kills the leader of the languages once, and starts it again."""

    def __init__(self, running):
        self.running = running
        self.problems = []
        self.thread = None

    def strike(self, bar):
        if self.running and not self.thread:
            self.thread = threading.Thread(target=self.run, args=(bar,))
            self.thread.start()

    def run(self, bar):
        try:
            node = self.running.leader(DATABASE, "languages")
            self.running.kill(node)
            bar.set_postfix_str(f"node {node} led, and was killed")
            # It stays away while a new leader is elected and many documents are written.
            time.sleep(4)
            self.running.start(node)
            self.running.wait_ready()
            bar.set_postfix_str(f"node {node} was killed and is back")
        except Exception as error:  # noqa: BLE001 - a failure here is a failure of the run
            self.problems.append(f"the leader could not be killed and started: {error!r}")

    def join(self):
        if self.thread:
            self.thread.join()


def read_items(view, wanted):
    """Reads documents in one request.

    Where threads share a client, azure-cosmos 4.17.1 may stumble over itself: it copies the headers
    of one answer while another thread adds to them, as to those of the last answer, how often it
    has tried.
    """
    for attempt in range(TRIES_MAX):
        try:
            return list(view.read_items(wanted))
        except RuntimeError as error:
            if "during iteration" not in str(error) or attempt == TRIES_MAX - 1:
                raise


def load(documents, ledgers, killer, writers):
    """Creates all documents and reads each chunk back."""
    groups = collections.defaultdict(list)
    for container, document in documents:
        groups[container].append(document)
    chunks = [
        (ledgers[name], group[start : start + CHUNK])
        for name, group in groups.items()
        for start in range(0, len(group), CHUNK)
    ]
    bar = tqdm(total=len(documents), unit=" documents", mininterval=0.5)
    lock = threading.Lock()

    def write(ledger, chunk):
        for document in chunk:
            ledger.create(document)
            with lock:
                bar.update()
                if bar.n * 2 >= bar.total:
                    killer.strike(bar)
        ledger.compare_some([document["id"] for document in chunk])

    with bar, ThreadPoolExecutor(writers) as pool:
        for done in as_completed([pool.submit(write, *chunk) for chunk in chunks]):
            done.result()


def watch_counts(ledgers):
    """Asks every node how many are left, until everything that expires has done so."""
    dues = [due for ledger in ledgers for due in ledger.due.values() if due < FOREVER]
    end = max(dues) + 2 * LATE_SECONDS_MAX
    while time.time() < end:
        for ledger in ledgers:
            for node in ledger.views:
                ledger.poll_count(node)
        time.sleep(0.25)


def print_table(ledgers):
    print(
        f"\n{'container':<10} {'written':>8} {'retries':>8} {'compared':>9} {'asked':>6}"
        f" {'watched':>8} {'gone after':>11} {'left':>6}"
    )
    for name, ledger in ledgers.items():
        left = sum(due > time.time() for due in ledger.due.values())
        late = f"{ledger.late * 1000:.0f} ms" if ledger.watched else "-"
        print(
            f"{name:<10} {len(ledger.documents):>8} {ledger.retries:>8} {ledger.read_back:>9}"
            f" {ledger.polls:>6} {ledger.watched:>8} {late:>11} {left:>6}"
        )
    print(
        "compared: read back, on all nodes; watched: seen to go at their second, and how long after"
        " it the latest first 404 was asked for"
    )


if __name__ == "__main__":
    sys.exit(main())
