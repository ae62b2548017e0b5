// Command cockroach-grammar parses SQL with CockroachDB's own grammar.
//
// It reads a JSON array of {"name": …, "sql": …} from standard input and writes one line for each statement that
// CockroachDB would not take, with its name and why. Exit status 1 if there is such a line, or nothing to parse.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/cockroachdb/cockroachdb-parser/pkg/sql/parser"
)

type statement struct {
	Name string `json:"name"`
	SQL  string `json:"sql"`
}

func main() {
	var statements []statement
	if err := json.NewDecoder(os.Stdin).Decode(&statements); err != nil {
		fmt.Println("the input is not a JSON array of statements:", err)
		os.Exit(2)
	}
	refused := 0
	for _, found := range statements {
		parsed, err := parser.Parse(found.SQL)
		switch {
		case err != nil:
			fmt.Printf("%s: %s\n", found.Name, strings.ReplaceAll(err.Error(), "\n", " "))
			refused++
		case len(parsed) != 1:
			fmt.Printf("%s: %d statements, where one is expected\n", found.Name, len(parsed))
			refused++
		}
	}
	if refused > 0 || len(statements) == 0 {
		os.Exit(1)
	}
}
