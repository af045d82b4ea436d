//! What both engines must do, told by random steps, views, scans and crashes.

use proptest::prelude::*;

use super::*;

/// What is done to an engine.
#[derive(Clone, Debug)]
enum Step {
    Write(Vec<Wish>),
    Flush,
    /// Keeps a view, to be compared at the end.
    Look,
}

/// A change of a batch.
#[derive(Clone, Debug)]
enum Wish {
    Put(Table, Vec<u8>, Vec<u8>),
    Delete(Table, Vec<u8>),
    DeleteRange(KeyRange),
}

type Model = std::collections::BTreeMap<(Table, Vec<u8>), Vec<u8>>;

fn table() -> impl Strategy<Value = Table> {
    proptest::sample::select(&[Table::Items, Table::Feed, Table::Meta][..])
}

/// Short keys over few letters, so that they meet.
fn key() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(proptest::sample::select(&[0_u8, 1, 2, 0xFF][..]), 1..4)
}

fn range() -> impl Strategy<Value = KeyRange> {
    (table(), key(), proptest::option::of(key())).prop_map(|(table, start, end)| KeyRange {
        table,
        start,
        end,
    })
}

fn wish() -> impl Strategy<Value = Wish> {
    let value = proptest::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        6 => (table(), key(), value).prop_map(|(table, key, value)| Wish::Put(table, key, value)),
        2 => (table(), key()).prop_map(|(table, key)| Wish::Delete(table, key)),
        1 => range().prop_map(Wish::DeleteRange),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => proptest::collection::vec(wish(), 1..6).prop_map(Step::Write),
        1 => Just(Step::Flush),
        1 => Just(Step::Look),
    ];
    proptest::collection::vec(step, 1..40)
}

fn batch(wishes: &[Wish]) -> Batch {
    let mut batch = Batch::default();
    for wish in wishes {
        match wish {
            Wish::Put(table, key, value) => batch.put(*table, key, value),
            Wish::Delete(table, key) => batch.delete(*table, key),
            Wish::DeleteRange(range) => batch.delete_range(range),
        }
    }
    batch
}

fn change_model(model: &mut Model, wishes: &[Wish]) {
    for wish in wishes.iter().cloned() {
        match wish {
            Wish::Put(table, key, value) => drop(model.insert((table, key), value)),
            Wish::Delete(table, key) => drop(model.remove(&(table, key))),
            Wish::DeleteRange(range) => model.retain(|(table, key), _| {
                *table != range.table
                    || *key < range.start
                    || range.end.as_ref().is_some_and(|end| key >= end)
            }),
        }
    }
}

/// Everything that can be read.
fn contents(read: &dyn Read) -> Model {
    let mut contents = Model::new();
    for table in Table::ALL {
        for row in read.scan(&KeyRange::prefix(table, Vec::new())) {
            let (key, value) = row.unwrap();
            assert_eq!(read.get(table, &key).unwrap().as_ref(), Some(&value));
            contents.insert((table, key), value);
        }
    }
    contents
}

/// Takes the steps; what the model held after every write since the last flush, and at that flush.
fn run(engine: &dyn Engine, steps: &[Step], probe: &KeyRange) -> Vec<Model> {
    let (mut model, mut looks) = (Model::new(), Vec::new());
    let mut survivors = vec![model.clone()];
    for step in steps {
        match step {
            Step::Write(changes) => {
                engine.write(batch(changes)).unwrap();
                change_model(&mut model, changes);
                survivors.push(model.clone());
            }
            Step::Flush => {
                engine.flush().unwrap();
                survivors = vec![model.clone()];
            }
            Step::Look => looks.push((engine.view(), model.clone())),
        }
    }
    looks.push((engine.view(), model.clone()));
    check_scans(engine, &model, probe);
    check_get_each(engine, &model, probe);
    for (view, model) in looks {
        assert_eq!(contents(view.as_ref()), model, "later writes do not change a view");
        check_scans(view.as_ref(), &model, probe);
    }
    survivors
}

/// Values come in the order of their keys, whatever that is, and none where there is no row.
fn check_get_each(engine: &dyn Engine, model: &Model, probe: &KeyRange) {
    let table = probe.table;
    let known = model.keys().rev().filter(|(known, _)| *known == table).map(|(_, key)| key.clone());
    let keys: Vec<_> =
        [probe.start.clone()].into_iter().chain(known.clone()).chain(known).collect();
    let values = engine.get_each(table, &keys).unwrap();
    let expected = keys.into_iter().map(|key| model.get(&(table, key)).cloned());
    assert!(values.into_iter().eq(expected));
}

/// A scan shows its range in key order, or against it; what is behind the last row stays nothing.
fn check_scans(read: &dyn Read, model: &Model, probe: &KeyRange) {
    let is_inside = |table: Table, key: &Vec<u8>| {
        table == probe.table
            && *key >= probe.start
            && probe.end.as_ref().is_none_or(|end| key < end)
    };
    let inside = model.iter().filter(|((table, key), _)| is_inside(*table, key));
    let mut expected: Vec<Row> =
        inside.map(|((_, key), value)| (key.clone(), value.clone())).collect();
    assert_eq!(read.scan(probe).map(Result::unwrap).collect::<Vec<Row>>(), expected);
    expected.reverse();
    assert_eq!(read.scan_reverse(probe).map(Result::unwrap).collect::<Vec<Row>>(), expected);
    for direction in [Direction::Forward, Direction::Backward] {
        let mut cursor = read.cursor(probe, direction);
        let rows = std::iter::from_fn(|| cursor.next_row().unwrap().map(|(key, _)| key.to_vec()));
        assert_eq!(rows.count(), expected.len());
        assert!(cursor.next_row().unwrap().is_none());
    }
}

proptest! {
    #[test]
    fn memory_keeps_the_contract(steps in steps(), probe in range()) {
        let engine = MemoryEngine::new();
        let survivors = run(&engine, &steps, &probe);
        engine.crash();
        prop_assert!(survivors.contains(&contents(&engine)), "a crash leaves a prefix");
    }
}

#[cfg(feature = "rocksdb")]
mod rocks {
    use std::fs;
    use std::path::Path;
    use std::sync::Mutex;

    use super::*;

    fn open(directory: &Path) -> RocksEngine {
        let on_damage = Box::new(|fault: &Fault| panic!("{fault}"));
        RocksEngine::open(directory, RocksOptions::default(), on_damage).unwrap()
    }

    /// Changes a byte of the table file that holds `needle`.
    fn damage(directory: &Path, needle: &[u8]) {
        for file in fs::read_dir(directory).unwrap() {
            let path = file.unwrap().path();
            let mut bytes = fs::read(&path).unwrap();
            let place = bytes.windows(needle.len()).position(|window| window == needle);
            if let Some(place) = place.filter(|_| path.extension().is_some_and(|it| it == "sst")) {
                bytes[place] ^= 1;
                return fs::write(path, bytes).unwrap();
            }
        }
        panic!("no file holds {needle:?}");
    }

    #[test]
    fn damage_is_told_of_by_whoever_comes_upon_it_and_never_shown() {
        let directory = tempfile::tempdir().unwrap();
        let put = |key: &str| Wish::Put(Table::Items, key.into(), format!("value {key}").into());
        let rows: Vec<Wish> = (1000..3000).map(|n| put(&n.to_string())).collect();
        let engine = open(directory.path());
        engine.write(batch(&rows)).unwrap();
        engine.flush().unwrap();
        drop(engine);
        damage(directory.path(), b"value 2000");

        let told = Arc::new(Mutex::new(Vec::new()));
        let listener = told.clone();
        let on_damage = Box::new(move |fault: &Fault| {
            listener.lock().unwrap().push(fault.to_string());
        });
        let engine =
            RocksEngine::open(directory.path(), RocksOptions::default(), on_damage).unwrap();
        assert_eq!(engine.get(Table::Items, b"1000").unwrap().unwrap(), b"value 1000");
        assert!(told.lock().unwrap().is_empty(), "nobody has read it yet");
        let all = KeyRange::prefix(Table::Items, Vec::new());
        let faults = [
            engine.get(Table::Items, b"2000").unwrap_err(),
            engine.get_each(Table::Items, &[b"1000".into(), b"2000".into()]).unwrap_err(),
            engine.view().get(Table::Items, b"2000").unwrap_err(),
            engine.scan(&all).find_map(Result::err).unwrap(),
            engine.view().scan_reverse(&all).find_map(Result::err).unwrap(),
        ];
        assert!(faults.iter().all(|fault| matches!(fault, Fault::Corrupt { .. })), "{faults:?}");
        assert_eq!(*told.lock().unwrap(), faults.map(|fault| fault.to_string()));
    }

    /// NaN is eight zeros, as is the number of no item: what begins there is no scan of one value.
    #[test]
    fn a_scan_from_nan_on_does_not_end_with_it() {
        use crate::indexing::{EncodedValue, IndexPath, IndexRange, Step};
        use crate::query::Value;

        let path = IndexPath::new(&[Step::Member("a".into())]).unwrap();
        let values = [f64::NAN, f64::NAN, -1.0, 7.0].map(|n| EncodedValue::new(&Value::float(n)));
        let key = |(number, value): (u64, &EncodedValue)| {
            let number = number.to_be_bytes();
            [b"generat.", path.as_bytes(), value.as_ref().as_bytes(), &number].concat()
        };
        let rows: Vec<Wish> = (0..).zip(&values).map(key).map(put).collect();
        let directory = tempfile::tempdir().unwrap();
        let (rocks, memory) = (open(directory.path()), MemoryEngine::new());
        for engine in [&rocks as &dyn Engine, &memory] {
            engine.write(batch(&rows)).unwrap();
            engine.flush().unwrap();
        }
        let numbers = IndexRange::types(path.clone(), 3..=3);
        let (start, end) = numbers.from(values[0].as_ref().as_bytes()).rows(b"generat.");
        let range = KeyRange { table: Table::Index, start, end };
        let found = |engine: &dyn Engine| engine.scan(&range).map(Result::unwrap).count();
        assert_eq!((found(&rocks), found(&memory)), (4, 4));
    }

    fn put(key: Vec<u8>) -> Wish {
        Wish::Put(Table::Index, key, Vec::new())
    }

    /// What the disk holds while the process lives: what a crash would leave.
    fn copy(from: &Path) -> std::io::Result<tempfile::TempDir> {
        let to = tempfile::tempdir()?;
        for file in std::fs::read_dir(from)? {
            let file = file?;
            if file.file_name() != "LOCK" {
                std::fs::copy(file.path(), to.path().join(file.file_name()))?;
            }
        }
        Ok(to)
    }

    /// Files that are not needed any more are removed meanwhile; then it is copied again.
    fn crash(live: &Path) -> tempfile::TempDir {
        loop {
            match copy(live) {
                Ok(dead) => return dead,
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}"),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// The tables must not survive a crash at different points of history.
        #[test]
        fn rocks_keeps_the_contract(steps in steps(), probe in range()) {
            let live = tempfile::tempdir().unwrap();
            let engine = open(live.path());
            let survivors = run(&engine, &steps, &probe);
            let dead = crash(live.path());
            let crashed = open(dead.path());
            prop_assert!(survivors.contains(&contents(&crashed)), "a crash leaves a prefix");
        }

        /// Files without a value are passed over by what their filters say.
        #[test]
        fn entries_of_one_value_are_found_whichever_file_they_are_in(
            steps in proptest::collection::vec((0_u8..8, b'a'..=b'c', 1_u64..12), 1..80),
        ) {
            let live = tempfile::tempdir().unwrap();
            let engine = open(live.path());
            let mut model = Model::new();
            for (kind, value, number) in steps {
                let key = [&b"path"[..], &[value], &number.to_be_bytes()].concat();
                let wish = match kind {
                    0..4 => Wish::Put(Table::Index, key, Vec::new()),
                    4..6 => Wish::Delete(Table::Index, key),
                    6 => Wish::DeleteRange(KeyRange::prefix(Table::Index, key[..5].to_vec())),
                    _ => {
                        engine.flush().unwrap();
                        continue;
                    }
                };
                engine.write(batch(std::slice::from_ref(&wish))).unwrap();
                change_model(&mut model, &[wish]);
            }
            for value in b'a'..=b'd' {
                let mut probe = KeyRange::prefix(Table::Index, [&b"path"[..], &[value]].concat());
                check_scans(&engine, &model, &probe);
                probe.start.extend_from_slice(&[0; 8]);
                check_scans(engine.view().as_ref(), &model, &probe);
            }
            check_scans(&engine, &model, &KeyRange::prefix(Table::Index, b"path".to_vec()));
        }
    }
}
