//! Commands about queries: pages, plans, values of expressions, computed properties.

use std::error::Error;
use std::fmt::Write as _;

use ephemeris_store::ids::ItemNumber;
use ephemeris_store::indexing::{self, IndexRules};
use ephemeris_store::partition_key::{KeyDefinition, KeyKind, parse_path};
use ephemeris_store::query::client_plan::{ClientPlan, Features, PlanRefusal};
use ephemeris_store::query::{
    CompiledQuery, ComputedProperties, Halt, Moment, PageLimits, Parameters, Run, Scope, Value,
};
use goldenscript::ArgumentConsumer;

use super::support::{Asking, NoPage};
use super::{Answer, Runner};

impl Runner {
    /// `query TEXT [max=N] [@name=JSON …]`: every page until there is no more.
    pub(super) fn query(&mut self, mut args: ArgumentConsumer<'_>) -> Answer {
        let text = args.next_pos().ok_or("which query?")?;
        let rows = args.take_key("max").map_or(Ok(100), str::parse)?;
        let parameters = parameters(&mut args)?;
        let index = self.rules.index();
        let query = match CompiledQuery::new(text, &parameters, index, &self.computed) {
            Ok(query) => query,
            Err(error) => return Ok(format!("{}\n", error.to_message())),
        };
        let asking = Asking {
            query: &query,
            partitions: &[&self.partition],
            rules: &self.rules,
            scope: &Scope::default(),
            limits: PageLimits { rows, bytes: 1 << 20, items: 1000 },
            hi: self.now.hi(),
        };
        let pages = match asking.pages() {
            Ok(pages) => pages,
            Err(NoPage::InDoubt(expiry)) => return Ok(format!("in doubt since {expiry}\n")),
            Err(NoPage::Halt(Halt::Refused(error))) => {
                return Ok(format!("{}\n", error.to_message()));
            }
            Err(NoPage::Halt(Halt::Stopped)) => panic!("nobody stops a script"),
        };
        let show = |page: &Vec<Vec<u8>>| {
            page.iter().map(|row| String::from_utf8_lossy(row) + "\n").collect::<String>()
        };
        let pages: Vec<String> = pages.iter().map(show).collect();
        Ok(pages.join("- next page\n"))
    }

    /// `plan TEXT [can=FEATURES] [key=/a,/b] [index=POLICY] [computed=DEFINITIONS] [@name=JSON …]`:
    /// what a client is told, as far as that is not what it is told of `SELECT * FROM c`.
    pub(super) fn plan(args: &mut ArgumentConsumer<'_>) -> Answer {
        let text = args.next_pos().ok_or("which query?")?;
        let client = args.take_key("can").map_or(Features::all(), Features::parse);
        let json = |text: Option<&str>| text.map(serde_json::from_str).transpose();
        let policy = indexing::complete(json(args.take_key("index"))?.as_ref())?;
        let index = IndexRules::new(&policy)?;
        let computed = ComputedProperties::parse(json(args.take_key("computed"))?.as_ref())?;
        let paths = args.take_key("key").unwrap_or("/pk").split(',').map(parse_path);
        let paths = paths.collect::<Result<Vec<_>, _>>()?;
        let kind = if paths.len() > 1 { KeyKind::MultiHash } else { KeyKind::HashV2 };
        let key = KeyDefinition { kind, paths };
        let parameters = parameters(args)?;
        let plan = |text| {
            let plan = ClientPlan::new(text, &parameters, &index, &computed, &key, &client);
            plan.map(|plan| serde_json::to_value(plan).expect("a plan is JSON"))
        };
        let (plan, usual) = match plan(text) {
            Ok(found) => (found, plan("SELECT * FROM c")?),
            Err(PlanRefusal::Query(error)) => return Ok(format!("{}\n", error.to_message())),
            Err(refusal @ PlanRefusal::Unsupported(_)) => return Ok(format!("{refusal}\n")),
        };
        let mut text = String::new();
        let info = plan["queryInfo"].as_object().expect("it describes the query");
        for (name, value) in info.iter().filter(|(name, value)| **value != usual["queryInfo"][name])
        {
            match value.as_str() {
                Some(value) => writeln!(text, "{name}: {value}")?,
                None => writeln!(text, "{name}: {value}")?,
            }
        }
        if plan["queryRanges"] != usual["queryRanges"] {
            for range in plan["queryRanges"].as_array().expect("a list") {
                let end = if range["isMaxInclusive"] == true { "]" } else { ")" };
                writeln!(text, "range [{}, {}{end}", range["min"], range["max"])?;
            }
        }
        Ok(if text.is_empty() { "as it is\n".to_string() } else { text })
    }

    /// `value EXPRESSION… [of=JSON] [@name=JSON …]`: what each is for the item `c`.
    pub(super) fn value(&mut self, args: &mut ArgumentConsumer<'_>) -> Answer {
        let item = Value::from_json(args.take_key("of").unwrap_or("{}").as_bytes())?;
        let mut parameters = Parameters::default();
        let mut expressions = Vec::new();
        while let Some(expression) = args.next_pos() {
            expressions.push(expression.to_string());
        }
        while let Some((name, value)) = args.next_key() {
            parameters.add(name, Value::from_json(value.as_bytes())?)?;
        }
        let mut text = String::new();
        for expression in expressions {
            let query = format!("SELECT VALUE {expression} FROM c");
            let index = self.rules.index();
            let shown = match CompiledQuery::new(&query, &parameters, index, &self.computed) {
                Err(error) => error.to_message(),
                Ok(query) => {
                    let run = Run::new(Moment::new(self.now.hi(), self.now.hi(), 0));
                    let item = (ItemNumber(0), item.clone());
                    match query.select(std::iter::once(item), &run) {
                        Err(error) => error.to_message(),
                        Ok(rows) => rows.first().map_or(Ok("undefined".into()), |row| {
                            String::from_utf8(row.value.to_json())
                        })?,
                    }
                }
            };
            // A carriage return would not survive in a file.
            writeln!(text, "{} → {shown}", expression.replace('\r', "\\r"))?;
        }
        Ok(text)
    }

    /// `computed NAME=QUERY…`: the container's computed properties.
    pub(super) fn computed(&mut self, args: &mut ArgumentConsumer<'_>) -> String {
        let mut definition = Vec::new();
        while let Some((name, query)) = args.next_key() {
            definition.push(serde_json::json!({ "name": name, "query": query }));
        }
        match ComputedProperties::parse(Some(&definition.into())) {
            Ok(computed) => {
                self.computed = computed;
                String::new()
            }
            Err(error) => format!("refused: {error}\n"),
        }
    }
}

/// `[@name=JSON …]`
fn parameters(args: &mut ArgumentConsumer<'_>) -> Result<Parameters, Box<dyn Error>> {
    let mut parameters = Parameters::default();
    while let Some((name, value)) = args.next_key() {
        parameters.add(name, Value::from_json(value.as_bytes())?)?;
    }
    Ok(parameters)
}
