//! The keys of `notify`: notifications about a run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

section! {
    /// Notifications when a run ends, fails or returns to a checkpoint.
    pub struct NotifyConfig {
        /// Web address, `https://` or `http://`, that gets a POST when the run ends, fails or returns to a
        /// checkpoint: a topic of ntfy, or a webhook of Slack or Discord. Redirects are not followed, and a failure to
        /// notify never ends a run. Anyone with the address can post there, so the report page leaves it out.
        #[schemars(regex(pattern = "^https?://[^/?#@\\s]+([/?][^#\\s]*)?$"))]
        pub url: Option<String> = None, for Any, resume Unrelated;
    }
}
