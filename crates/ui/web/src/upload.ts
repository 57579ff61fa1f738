// Files that are added to a folder of data.
import { type MediaFolder, send, sendFile } from "./api";

/** What the server takes. */
const KNOWN = /\.(png|jpe?g|webp|bmp|gif|mp4|m4v|mkv|webm|mov|avi|ogv|txt|md|jsonl?|csv|parquet)$/i;

/** Adds files to a folder, one after another; returns what was not added, and why. */
export async function upload(path: string, files: File[], onProgress: (text: string) => void): Promise<string[]> {
  const { set } = (await send<MediaFolder>("POST", "/api/media", { path }))!;
  const wrong: string[] = [];
  for (const [count, file] of files.entries()) {
    onProgress(`Adding ${count + 1} of ${files.length}`);
    if (!KNOWN.test(file.name)) {
      wrong.push(`${file.name} is no picture, video or text`);
      continue;
    }
    try {
      await sendFile(`/api/data/${set}/files/${encodeURIComponent(file.name)}`, file);
    } catch (error) {
      wrong.push(`${file.name}: ${(error as Error).message}`);
    }
  }
  return wrong;
}

/** The files that were dropped, those in folders included. */
export async function dropped(transfer: DataTransfer): Promise<File[]> {
  const found = await Promise.all(
    [...transfer.items].map((item) => {
      const entry = item.webkitGetAsEntry();
      const file = item.getAsFile();
      return entry ? filesOf(entry) : file ? [file] : [];
    }),
  );
  return found.flat().filter(({ name }) => !name.startsWith("."));
}

async function filesOf(entry: FileSystemEntry): Promise<File[]> {
  if (entry.isFile) return [await new Promise<File>((done, failed) => (entry as FileSystemFileEntry).file(done, failed))];
  const reader = (entry as FileSystemDirectoryEntry).createReader();
  const all: File[] = [];
  for (;;) {
    // A browser returns a hundred at a time.
    const some = await new Promise<FileSystemEntry[]>((done, failed) => reader.readEntries(done, failed));
    if (some.length === 0) return all;
    for (const each of some) all.push(...(await filesOf(each)));
  }
}
