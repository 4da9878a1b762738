package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: plot REPORT.json PICTURE.svg [PICTURE.png …]")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(input string, outputs []string) error {
	r, err := readReport(input)
	if err != nil {
		return err
	}
	for _, output := range outputs {
		if err := write(output, r); err != nil {
			return err
		}
	}
	return nil
}
