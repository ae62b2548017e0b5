"""CSV files as they come: what people and programs have made of RFC 4180. Python's ``csv`` is the referee."""

from __future__ import annotations

import csv
import io
import random
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class WildCsv:
    """One file. All have the columns ``network`` (an id that no other row of any file has) and ``owner``.

    ``bad``: lines of records that are wrong by themselves. ``refused``: what is said of a file that can't be read.
    """

    name: str
    data: bytes
    bad: tuple[int, ...] = ()
    refused: str = ""
    delimiter: str = ","

    def referee_rows(self) -> list[dict[str, str]]:
        """What Python's ``csv`` makes of the file, without the records that are ``bad``."""
        text = io.TextIOWrapper(io.BytesIO(self.data), "utf-8-sig", errors="surrogateescape", newline="")
        reader = csv.reader(text, delimiter=self.delimiter, strict=True)
        csv.field_size_limit(4 * 1024 * 1024)
        header = next(cells for cells in reader if cells)
        rows, line = [], reader.line_num + 1
        for cells in reader:
            if cells and line not in self.bad:
                rows.append(dict(zip(header, cells, strict=True)))
            line = reader.line_num + 1
        return rows


def _random_file(seed: int) -> bytes:
    """Fields of all that has a meaning in CSV, as Python's own writer writes them."""
    dice = random.Random(seed)
    pieces = [
        ",",
        '"',
        '""',
        "\n",
        "\r\n",
        "\r",
        "a",
        " ",
        "\\",
        "'",
        "#",
        ";",
        "\t",
        "é",
        "\U0001f600",
        "\u2028",
        "\x0b",
    ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator=dice.choice(["\n", "\r\n"]), quoting=csv.QUOTE_ALL)
    writer.writerow(["network", "owner"])
    for number in range(200):
        writer.writerow([f"random {seed} {number}", "".join(dice.choices(pieces, k=dice.randrange(1, 9)))])
    return out.getvalue().encode()


READABLE: Final = (
    WildCsv("plain", b"network,owner\nplain 1,Docs\nplain 2,Tests\n"),
    WildCsv("doubled quotes", b'network,owner\nquote 1,"Quoted, ""x"""\nquote 2,""""\nquote 3,"a ""b"" c"\n'),
    WildCsv("line breaks", b'network,owner\nbreak 1,"two\nlines"\nbreak 2,"\nfirst"\nbreak 3,"last\n"\nbreak 4,ok\n'),
    WildCsv("dos", b'network,owner\r\ndos 1,"two\r\nlines"\r\ndos 2,x\r\n\r\ndos 3,y\r\n'),
    WildCsv("old mac", b'network,owner\rmac 1,x\rmac 2,"two\rlines"\rmac 3,y\r'),
    WildCsv("mixed ends", b"network,owner\r\nmixed 1,x\nmixed 2,y\r\nmixed 3,z\rmixed 4,w\n"),
    WildCsv("no last end", b"network,owner\nend 1,x\nend 2,y"),
    WildCsv("another order", b"owner,network\nBits,order 1\nDocs,order 2\n"),
    WildCsv("mark of Excel", b"\xef\xbb\xbfnetwork,owner\nexcel 1,x\n"),
    WildCsv("mark and quotes", b'\xef\xbb\xbf"network","owner"\n"excel 2","x"\n'),
    WildCsv("all quoted", b'"network","owner"\n"all 1","x"\n"all 2",""\n'),
    WildCsv("empty fields", b'network,owner\nempty 1,\nempty 2,""\n'),
    WildCsv("spaces", b'network,owner\nspace 1,  two  \n space 2,x\nspace 3, "not a quote"\n'),
    WildCsv("quotes inside", b'network,owner\ninside 1,5" disk\ninside 2,a"b"c\ninside 3,it\'s\n'),
    WildCsv("backslashes", b'network,owner\nslash 1,C:\\temp\\\nslash 2,"C:\\"\nslash 3,\\"\nslash 4,\\n\n'),
    WildCsv("no comments", b"network,owner\n#hash 1,x\nhash 2,#y\n"),
    WildCsv("unicode", "network,owner\nuni é,ö\U0001f600\nuni \u2028 2,a\u0085b\nuni 3,\u00a0\n".encode()),
    WildCsv("formulas", b'network,owner\nformula 1,=1+1\nformula 2,"=HYPERLINK(""x"",""y"")"\n'),
    WildCsv("long field", b'network,owner\nlong 1,"' + b"x,\n" * 60_000 + b'"\nlong 2,y\n'),
    WildCsv("blank lines", b"\n\nnetwork,owner\n\nblank 1,x\n\n\nblank 2,y\n\n"),
    WildCsv("only a header", b"network,owner\n"),
    WildCsv("wrong widths", b"network,owner\nwidth 1,x,y\nwidth 2\nwidth 3,z\n", bad=(2, 3)),
    WildCsv("latin", b"network,owner\nlatin 1,sch\xf6n\nlatin 2,good\n", bad=(2,)),
    WildCsv("latin in a break", b'network,owner\nbreak l,"one\n\xff\n""b"", two"\nlatin 3,good\n', bad=(2,)),
    *(WildCsv(f"random {seed}", _random_file(seed)) for seed in range(3)),
)
"""Files with these two columns: what the referee reads, and nothing else, is what they hold."""

OTHERS: Final = (
    WildCsv("semicolons", b'network;owner\nsemi 1;"a;b"\nsemi 2;c,d\n', delimiter=";"),
    WildCsv("tabs", b'network\towner\ntab 1\ta,b\ntab 2\t"c\td"\n', delimiter="\t"),
    WildCsv("more columns", b'asn,network,,owner,\n1,more 1,?,"x, y",\n2,more 2,?,z,\n'),
)

REFUSED: Final = (
    WildCsv(
        "open quote", b'network,owner\na,1\nb,"open\nc,3\nd,4\n', refused="line 3: is malformed: unexpected end of data"
    ),
    WildCsv(
        "text behind a quote",
        b'network,owner\na,"two" columns\nb,2\n',
        refused="line 2: is malformed: ',' expected after '\"'",
    ),
    WildCsv(
        "quotes not doubled",
        b'network,owner\na,1\nb,"one "and"\nsecond line",x\nc,3\n',
        refused="line 3: is malformed: ',' expected after '\"'",
    ),
    WildCsv("a name twice", b"network,owner,owner\na,1,2\n", refused="line 1: names the column 'owner' twice"),
    WildCsv("another encoding", "network,owner\na,1\n".encode("utf-16"), refused="line 1: is not UTF-8: byte 0xff"),
    WildCsv("no end", b"network,owner\na," + b"x" * (5 * 1024 * 1024), refused="line 2: is too long: at most 4194304"),
    WildCsv(
        "a field without end",
        b'network,owner\na,"' + b"x\n" * (3 * 1024 * 1024) + b'"\n',
        refused="line 2: is malformed: field larger than field limit",
    ),
)
"""Files of which nothing behind the line that is named may be believed."""
