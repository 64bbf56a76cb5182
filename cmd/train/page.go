package main

import (
	_ "embed"
	"encoding/base64"
	"errors"
	"html/template"
	"os"
)

//go:embed page.html
var pageText string

// page is a report as one HTML file that needs no other.
type page struct {
	Title string
	Lead  []string
	Parts []part
}

// part is a section: text, a table, pictures and texts that can be unfolded.
type part struct {
	Title   string
	Text    []string
	Head    []string
	Rows    [][]cell
	Figures []figure
	Folded  []folded
}

type cell struct{ Text, Class string }

type folded struct{ Title, Text string }

type figure struct {
	Caption string
	Data    template.URL
}

// cells makes a row of plain texts.
func cells(texts ...string) []cell {
	row := make([]cell, len(texts))
	for i, t := range texts {
		row[i].Text = t
	}
	return row
}

// yes is a cell that is good or bad.
func yes(ok bool, text string) cell {
	if ok {
		return cell{text, "yes"}
	}
	return cell{text, "no"}
}

// inline returns a PNG file as a part of the page.
func inline(path, caption string) (figure, error) {
	png, err := os.ReadFile(path)
	return figure{caption, template.URL("data:image/png;base64," + base64.StdEncoding.EncodeToString(png))}, err
}

// write writes the page.
func (p page) write(path string) error {
	t, err := template.New("page").Parse(pageText)
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(t.Execute(f, p), f.Close())
}
