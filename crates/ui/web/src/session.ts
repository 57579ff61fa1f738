// The token comes in the fragment of the address, which is sent to nobody, and becomes a cookie that scripts cannot
// read. Then it is taken out of the address.
import { send } from "./api";

/** Signs in with the token of the address, if it has one; says what went wrong. */
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
