package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

// schema is that of the reports this command reads.
const schema = 1

// report is the drawn part of a report of internal/bench; see there.
type report struct {
	Schema  int `json:"schema"`
	Machine struct {
		CPU     string `json:"cpu"`
		Cores   int    `json:"cores"`
		Virtual bool   `json:"virtual"`
	} `json:"machine"`
	Versions struct {
		Kvtier         string `json:"kvtier"`
		StockIsPatched bool   `json:"stock_is_patched"`
	} `json:"versions"`
	Settings struct {
		Model       string `json:"model"`
		Repetitions int    `json:"repetitions"`
		Quick       bool   `json:"quick"`
	} `json:"settings"`
	TTFT struct {
		Points []point `json:"points"`
	} `json:"ttft"`
}

// point is one prompt length; times are in seconds.
type point struct {
	Tokens   int    `json:"tokens"`
	Stock    series `json:"stock"`
	Restored series `json:"restored"`
	// Uncached is Restored with an empty page cache; 0 where it was not measured.
	Uncached series  `json:"restored_uncached"`
	Speedup  float64 `json:"speedup"`
}

type series struct {
	Median float64 `json:"median"`
}

func readReport(path string) (*report, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("opening the report: %w", err)
	}
	r := &report{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("reading the report %s: %w", path, err)
	}
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("reading the report %s: %w", path, err)
	}
	return r, nil
}

// pointsMin is the least that makes a curve.
const pointsMin = 2

func (r *report) check() error {
	switch {
	case r.Schema != schema:
		return fmt.Errorf("it has schema %d, this command reads %d; measure again", r.Schema, schema)
	case r.Settings.Quick:
		return errors.New("it was measured with -quick, its figures mean nothing")
	case len(r.TTFT.Points) < pointsMin:
		return fmt.Errorf("it has %d prompt lengths, a curve needs %d; measure ttft", len(r.TTFT.Points), pointsMin)
	}
	for _, p := range r.TTFT.Points {
		if p.Tokens <= 0 || p.Stock.Median <= 0 || p.Restored.Median <= 0 {
			return fmt.Errorf("the times for %d tokens are not positive", p.Tokens)
		}
	}
	return nil
}

// conditions describes in one line the machine and the settings of the measurement.
func (r *report) conditions() string {
	machine := fmt.Sprintf("%d-core %s", r.Machine.Cores, r.Machine.CPU)
	if r.Machine.Virtual {
		machine += " virtual machine"
	}
	version, _, _ := strings.Cut(r.Versions.Kvtier, "+")
	return fmt.Sprintf("Ollama %s on a %s. Client's clock, model load taken off, median of %d.", version, machine, r.Settings.Repetitions)
}

// model names the model.
func (r *report) model() string { return "Model: " + r.Settings.Model + "." }

// stockName is the label of the upper curve.
func (r *report) stockName() string {
	if r.Versions.StockIsPatched {
		return "Ollama, tier off"
	}
	return "stock Ollama"
}
