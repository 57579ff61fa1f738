//! The keys of `notify`: who is told how a run goes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Who is told when a run ends, breaks or goes back to a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NotifyConfig {
    /// Web address, `https://` or `http://`, that gets a POST when the run ends, breaks or goes back to a
    /// checkpoint: a topic of ntfy, or a webhook of Slack or Discord. Redirects are not followed, and a run
    /// never fails because of it. Who has the address can write there; the report page leaves it out.
    #[schemars(regex(pattern = "^https?://[^/?#@\\s]+([/?][^#\\s]*)?$"))]
    pub url: Option<String>,
}
