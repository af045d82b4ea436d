//! The requests tests send most: databases, containers, items, queries.

use serde_json::{Value, json};

use super::{Answer, Call, Client, encode_segment};

/// A container, by the names in its path.
#[derive(Clone, Debug)]
pub struct Container {
    database: String,
    name: String,
}

impl Container {
    /// A container of a database.
    pub fn new(database: &str, name: &str) -> Self {
        Self { database: database.to_string(), name: name.to_string() }
    }

    /// The database's name.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// The container's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `/dbs/d/colls/c`
    pub fn path(&self) -> String {
        let [database, name] = [&self.database, &self.name].map(|text| encode_segment(text));
        format!("/dbs/{database}/colls/{name}")
    }

    /// `/dbs/d/colls/c/docs`
    pub fn items(&self) -> String {
        self.path() + "/docs"
    }

    /// `/dbs/d/colls/c/docs/i`
    pub fn item(&self, id: &str) -> String {
        format!("{}/{}", self.items(), encode_segment(id))
    }
}

impl Client {
    /// Creates a database.
    pub async fn create_database(&self, name: &str) -> Answer {
        self.ask(Call::post("/dbs", json!({ "id": name }).to_string())).await
    }

    /// Creates a container with partition key `/pk` and whatever else `extra` says of it.
    pub async fn create_container(&self, container: &Container, extra: Value) -> Answer {
        let call = Call::post(
            format!("/dbs/{}/colls", encode_segment(container.database())),
            definition(container, extra).to_string(),
        );
        self.ask(call).await
    }

    /// Replaces a container's definition.
    pub async fn replace_container(&self, container: &Container, extra: Value) -> Answer {
        self.ask(Call::put(container.path(), definition(container, extra).to_string())).await
    }

    /// Reads a container's definition.
    pub async fn read_container(&self, container: &Container) -> Answer {
        self.ask(Call::get(container.path())).await
    }

    /// Creates an item, whose key is its `pk`.
    pub async fn create_item(&self, container: &Container, item: &Value) -> Answer {
        self.ask(create_call(container, item)).await
    }

    /// Creates or replaces an item, whose key is its `pk`.
    pub async fn upsert_item(&self, container: &Container, item: &Value) -> Answer {
        let call = create_call(container, item).header("x-ms-documentdb-is-upsert", "True");
        self.ask(call).await
    }

    /// Replaces an item, whose key is its `pk`.
    pub async fn replace_item(&self, container: &Container, item: &Value) -> Answer {
        let id = item["id"].as_str().expect("items have an id");
        self.ask(Call::put(container.item(id), item.to_string()).key(&item["pk"])).await
    }

    /// Reads an item.
    pub async fn read_item(&self, container: &Container, key: &Value, id: &str) -> Answer {
        self.ask(Call::get(container.item(id)).key(key)).await
    }

    /// Deletes an item.
    pub async fn delete_item(&self, container: &Container, key: &Value, id: &str) -> Answer {
        self.ask(Call::delete(container.item(id)).key(key)).await
    }

    /// One page of a query over all partitions.
    pub async fn query_page(
        &self,
        container: &Container,
        text: &str,
        parameters: Value,
        continuation: Option<&str>,
    ) -> Answer {
        let body = json!({ "query": text, "parameters": parameters }).to_string();
        let call = Call::post(container.items(), body)
            .header("content-type", "application/query+json")
            .header("x-ms-documentdb-isquery", "true")
            .header("x-ms-documentdb-query-enablecrosspartition", "true");
        self.ask(paged(call, continuation)).await
    }

    /// All rows of a query over all partitions.
    pub async fn query(&self, container: &Container, text: &str, parameters: Value) -> Vec<Value> {
        let mut rows = Vec::new();
        let mut next: Option<String> = None;
        loop {
            let page = self.query_page(container, text, parameters.clone(), next.as_deref()).await;
            next = collect(page, &mut rows);
            if next.is_none() {
                return rows;
            }
        }
    }

    /// All items of a container, page by page.
    pub async fn read_feed(&self, container: &Container) -> Vec<Value> {
        let mut rows = Vec::new();
        let mut next: Option<String> = None;
        loop {
            let page = self.ask(paged(Call::get(container.items()), next.as_deref())).await;
            next = collect(page, &mut rows);
            if next.is_none() {
                return rows;
            }
        }
    }
}

/// The request that creates an item.
pub(super) fn create_call(container: &Container, item: &Value) -> Call {
    Call::post(container.items(), item.to_string())
        .header("content-type", "application/json")
        .key(&item["pk"])
}

fn definition(container: &Container, extra: Value) -> Value {
    let key = json!({ "paths": ["/pk"], "kind": "Hash", "version": 2 });
    let mut definition = json!({ "id": container.name(), "partitionKey": key });
    if let Value::Object(extra) = extra {
        definition.as_object_mut().expect("it was just made one").extend(extra);
    }
    definition
}

fn paged(call: Call, continuation: Option<&str>) -> Call {
    let call = call.header("x-ms-max-item-count", "1000");
    match continuation {
        Some(token) => call.header("x-ms-continuation", token),
        None => call,
    }
}

/// Takes a page's rows; answers where to go on.
fn collect(page: Answer, rows: &mut Vec<Value>) -> Option<String> {
    let page = page.expect(200);
    let mut body = page.json();
    let documents = body["Documents"].as_array_mut().expect("a page has Documents");
    rows.append(documents);
    page.continuation().map(str::to_string)
}
