// Data that no run has yet: a folder of pictures and videos, or files of text.
import { useEffect, useState } from "preact/hooks";
import { type FolderContent, read } from "../api";
import { MediaSet } from "../media_set";
import { Problem, useTitle } from "../widgets";
import { AddFiles } from "./add_files";
import { ChooseData } from "./choose_data";
import { Gallery } from "./gallery";
import { TextData } from "./text_data";

const link = (path: string) => `#/data?path=${encodeURIComponent(path)}`;

export function FolderView({ path }: { path: string | null }) {
  const name = path === null ? "Data" : (path.split("/").at(-1) ?? path);
  useTitle(path === null ? "Data" : `Data: ${name}`);
  return (
    <main class="place">
      {path === null ? (
        <>
          <h1>Data</h1>
          <p class="note">Look at pictures, videos and texts, write captions, and begin a run with them.</p>
          <ChooseData goal={null} chosen={null} onChoose={(chosen) => (location.hash = link(chosen))} />
        </>
      ) : (
        <Opened key={path} path={path} name={name} />
      )}
    </main>
  );
}

function Opened({ path, name }: { path: string; name: string }) {
  const [content, setContent] = useState<FolderContent | null>(null);
  const [media, setMedia] = useState<MediaSet | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  /** Counts how often the folder was read. */
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    let ended = false;
    let opened: MediaSet | null = null;
    Promise.all([read<FolderContent>(`/api/folder?path=${encodeURIComponent(path)}`), MediaSet.open(path)]).then(
      ([content, media]) => {
        if (ended) return;
        opened = media;
        setContent(content);
        setMedia(media);
        setProblem(null);
      },
      (error: Error) => !ended && setProblem(error.message),
    );
    return () => {
      ended = true;
      opened?.close();
    };
  }, [path, turn]);
  const again = () => setTurn(turn + 1);
  const hasMedia = media !== null && media.folder.media.length > 0;
  return (
    <>
      <p class="crumb">
        <a href="#/data">Data</a>
      </p>
      <div class="head">
        <h1>{name}</h1>
        <div class="tools">
          <a class="button primary" href={`#/new?data=${encodeURIComponent(path)}`}>
            New run with this
          </a>
        </div>
      </div>
      <p class="path">{path}</p>
      <Problem text={problem} />
      {media === null && problem === null && (
        <p class="note" role="status">
          Reading the folder …
        </p>
      )}
      {content && (
        <AddFiles path={path} onAdded={again}>
          {!hasMedia && content.files.length === 0 && (
            <p>There are no pictures, videos or texts here yet. Ten pictures are enough for a first LoRA; twenty are better.</p>
          )}
        </AddFiles>
      )}
      {hasMedia && <Gallery key={media.folder.set} media={media} onAgain={again} />}
      {content && !hasMedia && content.files.length > 0 && <TextData path={path} files={content.files} />}
      {content && !hasMedia && content.folders.length > 0 && (
        <section aria-label="Folders">
          <h2>Folders</h2>
          <ul class="entries named">
            {content.folders.map((folder) => (
              <li key={folder.path}>
                <a href={link(folder.path)}>
                  <b>{folder.name}</b>
                </a>
              </li>
            ))}
          </ul>
        </section>
      )}
    </>
  );
}
