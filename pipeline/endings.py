"""What files are, going by their names: the endings and names that the other rooms of the source know."""


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


AUDIO = frozenset(
    words(
        "wav wave wavex rf64 w64 flac mp3 ogg oga opus m4a m4b aac aif aiff aifc au snd sph nist caf wma mka ac3 amr "
        "ape wv mp2 voc raw pcm spx tta gsm avr htk svx paf pvf sd2 sds ircam xi wve mpc2k"
    )
)
VIDEO = frozenset(words("mp4 m4v mov mkv webm avi mpg mpeg 3gp 3g2 asf flv f4v wmv ogm ogv mxf nut ts m2ts"))
PICTURE = frozenset(words("jpg jpeg png gif bmp tif tiff webp ppm pgm ico svg heic avif"))
METADATA_NAMES = frozenset(words("metadata.csv metadata.jsonl metadata.parquet"))
BUILDERS = {  # ending -> builder
    **dict.fromkeys(words("parquet geoparquet gpq"), "parquet"),
    "arrow": "arrow",
    "tar": "webdataset",
    "zip": "zip",
    **dict.fromkeys(words("json jsonl ndjson"), "json"),
    **dict.fromkeys(words("csv tsv"), "csv"),
    **dict.fromkeys(AUDIO | VIDEO, "audiofolder"),
    **dict.fromkeys(words("txt xml hdf5 h5 lance"), "other"),
}


def base(url: str) -> str:
    return url.rsplit("/", 1)[-1]


def folder(url: str) -> str:
    return url.rsplit("/", 1)[0]


def ending(name: str) -> str:
    """`wav` of `a/b.c.WAV`; of a name without a dot, the name."""
    return base(name).rsplit(".", 1)[-1].lower()


def belongs(name: str, builder: str) -> bool:
    """Whether a file is one that the builder reads."""
    if builder == "audiofolder":
        return BUILDERS.get(ending(name)) == builder or base(name) in METADATA_NAMES
    return any(BUILDERS.get(part.lower()) == builder for part in base(name).split(".")[1:])
