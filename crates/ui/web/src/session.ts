// The token is in the fragment of the URL, which browsers never send, and is exchanged for a cookie that scripts cannot
// read. Then it is removed from the URL.
import { send } from "./api";

/** Signs in with the token of the URL, if it has one; returns an error message, or null. */
export async function signIn(): Promise<string | null> {
  const match = /^#token=([0-9a-f]{64})$/.exec(location.hash);
  if (!match) return null;
  history.replaceState(null, "", "/#/");
  try {
    await send("POST", "/api/session", { token: match[1] });
    return null;
  } catch (error) {
    return (error as Error).message;
  }
}
