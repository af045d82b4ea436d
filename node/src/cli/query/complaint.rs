//! Tells in words what a node refused, and shows where in the query it is wrong.

use reqwest::StatusCode;
use serde_json::Value;

/// The text for an answer that is no success.
pub(super) fn of(status: StatusCode, body: &str, query: Option<&str>) -> String {
    let json: Option<Value> = serde_json::from_str(body).ok();
    let message = json.as_ref().and_then(|json| json["message"].as_str());
    let Some(message) = message else { return format!("the node answers {status}: {body}") };
    let errors = query_errors(message);
    if errors.is_empty() {
        return message.to_string();
    }
    errors.iter().map(|error| explain(error, query)).collect::<Vec<_>>().join("\n")
}

/// The errors that a message about a query carries as JSON.
fn query_errors(message: &str) -> Vec<Value> {
    let Some(json) = message.strip_prefix("Message: ") else { return Vec::new() };
    let mut values = serde_json::Deserializer::from_str(json).into_iter();
    let Some(Ok::<Value, _>(mut value)) = values.next() else { return Vec::new() };
    let errors = [value["errors"].take(), value["Errors"].take()];
    errors.into_iter().filter_map(|list| list.as_array().cloned()).flatten().collect()
}

fn explain(error: &Value, query: Option<&str>) -> String {
    if let Some(text) = error.as_str() {
        return text.to_string();
    }
    let code = error["code"].as_str().map_or(String::new(), |code| format!(" ({code})"));
    let text = format!("{}{code}", error["message"].as_str().unwrap_or_default());
    let place = |name: &str| {
        let place = error["location"][name].as_u64()?;
        usize::try_from(place).ok()
    };
    match (query, place("start"), place("end")) {
        (Some(query), Some(start), Some(end)) => text + &pointer(query, start, end),
        _ => text,
    }
}

/// The line in question, and marks under the place; both are counted in characters.
fn pointer(query: &str, start: usize, end: usize) -> String {
    let mut line_start = 0;
    for line in query.split('\n') {
        let length = line.chars().count();
        if start <= line_start + length {
            let column = start - line_start;
            let marks = end.saturating_sub(start).min(length.saturating_sub(column)).max(1);
            let (shown, pad) = (line.replace('\t', " "), " ".repeat(column));
            return format!("\n  {shown}\n  {pad}{}", "^".repeat(marks));
        }
        line_start += length + 1;
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(message: &str, query: &str) -> String {
        let body = serde_json::json!({ "code": "BadRequest", "message": message }).to_string();
        of(StatusCode::BAD_REQUEST, &body, Some(query))
    }

    #[test]
    fn a_syntax_error_is_shown_in_its_line() {
        let message = "Message: {\"errors\":[{\"severity\":\"Error\",\"location\":{\"start\":11,\
                       \"end\":15},\"code\":\"SC1001\",\"message\":\"Syntax error, incorrect syntax \
                       near 'FORM'.\"}]}\r\nActivityId: x";
        let shown = complaint(message, "SELECT 'ä'\nFORM c");
        let expected = "Syntax error, incorrect syntax near 'FORM'. (SC1001)\n  FORM c\n  ^^^^";
        assert_eq!(shown, expected);
    }

    #[test]
    fn the_end_of_the_query_can_be_wrong_too() {
        let error = "Message: {\"errors\":[{\"location\":{\"start\":6,\"end\":6},\
                     \"message\":\"Unexpected end.\"}]}";
        assert_eq!(complaint(error, "SELECT"), "Unexpected end.\n  SELECT\n        ^");
        // A place that is not there is not shown.
        assert_eq!(complaint(error, "SEL"), "Unexpected end.");
    }

    #[test]
    fn errors_without_a_place_are_told_as_they_are() {
        let plain = "Message: {\"Errors\":[\"One.\",\"Two.\"]}";
        assert_eq!(complaint(plain, "SELECT"), "One.\nTwo.");
        let numbered =
            "Message: {\"errors\":[{\"severity\":\"Error\",\"code\":2206,\"message\":\"No.\"}]}";
        assert_eq!(complaint(numbered, "SELECT"), "No.");
        assert_eq!(
            complaint("Owner resource does not exist.", ""),
            "Owner resource does not exist."
        );
        assert_eq!(complaint("Message: {", ""), "Message: {");
    }

    #[test]
    fn what_is_no_error_of_ours_is_shown_whole() {
        let shown = of(StatusCode::BAD_GATEWAY, "<html>", None);
        assert_eq!(shown, "the node answers 502 Bad Gateway: <html>");
    }
}
