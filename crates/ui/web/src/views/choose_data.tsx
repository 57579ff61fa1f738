// The third step to a run: a folder of data, or a file, inside those that are allowed.
import { useEffect, useState } from "preact/hooks";
import { type FolderContent, type MediaFolder, read, send } from "../api";
import { byName, bytes, some, whole } from "../format";
import type { Goal } from "../recipes";
import { Problem } from "../widgets";
import { AddFiles, NewFolder } from "./add_files";

type FolderCounts = Pick<FolderContent, "images" | "videos" | "texts" | "captioned">;

/** What is in a folder, in words. */
function counted({ images, videos, texts, captioned }: FolderCounts): string {
  const parts = [
    some(images, "picture"),
    some(videos, "video"),
    images + videos > 0 ? `${whole(captioned)} with captions` : some(texts, "text file"),
  ];
  return parts.filter(Boolean).join(", ");
}

/** What keeps a folder from being the data of a goal, or makes it worse. */
export function doubtOf(goal: Goal, { images, videos, texts, captioned }: FolderCounts): { text: string; isFatal: boolean } | null {
  if (goal === "chat" || goal === "text") {
    return texts === 0 ? { text: "There are no files of text here.", isFatal: true } : null;
  }
  const media = goal === "image" ? images : images + videos;
  if (media === 0) return { text: goal === "image" ? "There are no pictures here." : "There are no videos here.", isFatal: true };
  if (goal === "video" && videos === 0) return { text: "There are only pictures here, which are clips of one frame.", isFatal: false };
  const bare = images + videos - captioned;
  if (bare > 0) {
    const text = `${whole(bare)} of ${whole(images + videos)} have no caption, such as 1.txt for 1.png: only the trigger word tells what is on them.`;
    return { text, isFatal: false };
  }
  return media < 10 ? { text: "Fewer than ten are easily memorised instead of learned.", isFatal: false } : null;
}

/** What a folder has with those in it, in which the trainer looks for pictures and videos, too. */
function withBelow(content: FolderContent): FolderCounts {
  const sum = (key: "images" | "videos" | "captioned") => content.folders.reduce((sum, folder) => sum + folder[key], content[key]);
  return { images: sum("images"), videos: sum("videos"), captioned: sum("captioned"), texts: content.texts };
}

/** How many pictures of a folder are shown before it is chosen. */
const MAX_SHOWN = 12;

/** The first pictures of a folder, so that one sees that it is the right one. */
function Glimpse({ path }: { path: string }) {
  const [pictures, setPictures] = useState<{ file: string; address: string }[]>([]);
  useEffect(() => {
    let ended = false;
    send<MediaFolder>("POST", "/api/media", { path, only_here: true }).then(
      (found) => {
        if (ended || !found) return;
        const all = found.media.map(({ file, width }, place) => ({ file, width, address: `/api/data/${found.set}/${place}/thumbnail` }));
        const readable = all.filter(({ width }) => width !== null);
        setPictures(readable.sort((one, other) => byName(one.file, other.file)).slice(0, MAX_SHOWN));
      },
      // What is wrong with the folder is told by whoever chooses it.
      () => {},
    );
    return () => {
      ended = true;
    };
  }, [path]);
  return (
    <ul class="glimpse" aria-label="The first pictures">
      {pictures.map(({ file, address }) => (
        <li key={address}>
          <img src={address} alt={file} title={file} loading="lazy" />
        </li>
      ))}
    </ul>
  );
}

interface ChooseDataProps {
  /** What the data are for, if that is known. */
  goal: Goal | null;
  chosen: string | null;
  onChoose: (path: string) => void;
  /** Called before the captions of a folder are shown in place of this. */
  onCaptions?: (() => void) | undefined;
}

export function ChooseData({ goal, chosen, onChoose, onCaptions }: ChooseDataProps) {
  const [path, setPath] = useState<string | null>(null);
  /** Counts how often the folder was changed here. */
  const [turn, setTurn] = useState(0);
  const [content, setContent] = useState<FolderContent | null>(null);
  /** Whether all that is allowed is in one folder. */
  const [isOnly, setOnly] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => {
    let ended = false;
    read<FolderContent>(`/api/folder${path === null ? "" : `?path=${encodeURIComponent(path)}`}`).then(
      (found) => {
        if (ended) return;
        setProblem(null);
        const [only, ...others] = found.folders.sort((one, other) => byName(one.name, other.name));
        found.files.sort((one, other) => byName(one.name, other.name));
        if (found.path === null && only && others.length === 0) {
          // There is nothing to choose.
          setOnly(true);
          setPath(only.path);
        } else setContent(found);
      },
      (error: Error) => !ended && setProblem(error.message),
    );
    return () => {
      ended = true;
    };
  }, [path, turn]);
  const here = content?.path ?? null;
  const counts = content && (goal === "chat" || goal === "text" ? content : withBelow(content));
  const isBelow = content !== null && counts !== null && content.images + content.videos === 0 && counts.images + counts.videos > 0;
  const doubt = counts && here !== null && goal !== null ? doubtOf(goal, counts) : null;
  return (
    <div class="picker">
      <Problem text={problem} />
      <div class="head">
        <span class="path">{here ?? "Allowed folders"}</span>
        <span class="tools">
          {here !== null && !(isOnly && content?.parent === null) && (
            <button type="button" onClick={() => setPath(content?.parent ?? null)}>
              Up
            </button>
          )}
          {here !== null && <NewFolder key={here} path={here} onMade={setPath} />}
          {here !== null && onCaptions !== undefined && content !== null && content.images + content.videos > 0 && (
            <a class="button" href={`#/data?path=${encodeURIComponent(here)}`} onClick={onCaptions}>
              Write captions
            </a>
          )}
          {here !== null && (
            <button
              type="button"
              class={chosen === here || isBelow ? "" : "primary"}
              disabled={doubt?.isFatal ?? false}
              onClick={() => onChoose(here)}
            >
              {goal === null ? "Open this folder" : chosen === here ? "Chosen" : "Use this folder"}
            </button>
          )}
        </span>
      </div>
      {content && here !== null && (
        <p class="note">
          {(counts && counted(counts)) || "Nothing to train on here."}
          {isBelow && ", in the folders below."} {doubt && <b class={doubt.isFatal ? "" : "doubt"}>{doubt.text}</b>}
          {content.is_cut && " There is more than is listed."}
        </p>
      )}
      {here !== null && content !== null && content.images > 0 && <Glimpse key={`${here} ${content.images}`} path={here} />}
      {here !== null && <AddFiles path={here} onAdded={() => setTurn(turn + 1)} />}
      <ul class="entries">
        {content?.folders.map((folder) => (
          <li key={folder.path}>
            <button type="button" onClick={() => setPath(folder.path)}>
              <b>{folder.name}</b>
              <span class="note">{counted(folder)}</span>
            </button>
          </li>
        ))}
        {(goal === "chat" || goal === "text") &&
          content?.files.map((file) => (
            <li key={file.path}>
              <button type="button" aria-pressed={chosen === file.path} onClick={() => onChoose(file.path)}>
                {file.name}
                <span class="note">{bytes(file.bytes)}</span>
              </button>
            </li>
          ))}
      </ul>
      {(here === null || (isOnly && content?.parent === null)) && (
        <p class="note">
          Other folders are allowed with <code>surefoot ui --data FOLDER</code>.
        </p>
      )}
    </div>
  );
}
