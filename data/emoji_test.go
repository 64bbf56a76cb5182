package data

import (
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// emojiFields are an entry of emoji.json.
type emojiFields map[string]any

func entry(x, y int, category string) emojiFields {
	return emojiFields{"name": fmt.Sprintf("AT %d %d", x, y), "sheet_x": x, "sheet_y": y, "category": category, "has_img_google": true}
}

// tileColor is what picture (x, y) of a test sheet is filled with: opaque, but
// for the last column, which is half transparent.
func tileColor(x, y int) color.NRGBA {
	c := color.NRGBA{uint8(20 * x), uint8(30 * y), 7, 255}
	if x == 4 {
		c.A = 128
	}
	return c
}

// writeEmoji writes a package with a sheet of 5 columns and 3 rows.
func writeEmoji(t *testing.T, dir string, size int, list ...emojiFields) {
	t.Helper()
	cell := size + 2
	sheet := image.NewNRGBA(image.Rect(0, 0, 5*cell, 3*cell))
	for y := range 3 {
		for x := range 5 {
			for i := range size * size {
				sheet.SetNRGBA(cell*x+1+i%size, cell*y+1+i/size, tileColor(x, y))
			}
			// Corners tell the place in the picture.
			sheet.SetNRGBA(cell*x+1, cell*y+1, color.NRGBA{255, 0, 0, 255})
			sheet.SetNRGBA(cell*x+size, cell*y+size, color.NRGBA{9, 9, 9, 0})
		}
	}
	write(t, dir, fmt.Sprintf("img/google/sheets/%d.png", size), encodePNG(t, sheet))
	raw, err := json.Marshal(list)
	must(t, err)
	write(t, dir, "emoji.json", raw)
}

// gridOf lists all 15 pictures of the sheet, column by column, as the package does.
func gridOf() []emojiFields {
	var list []emojiFields
	for i := range 15 {
		list = append(list, entry(i/3, i%3, []string{"Smileys", "Flags", "Objects"}[i%3]))
	}
	return list
}

func TestEmojiPixelsLabelsAndSplit(t *testing.T) {
	for _, size := range []int{16, 20, 32, 64} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			dir := t.TempDir()
			writeEmoji(t, dir, size, gridOf()...)
			train, heldOut := open(t, Options{Kind: "emoji", Path: dir, ImageSize: size, Channels: 3})
			if train.Len() != 14 || heldOut.Len() != 1 {
				t.Fatalf("%d and %d pictures, want 14 and 1", train.Len(), heldOut.Len())
			}
			k := 0
			for i := range 15 {
				set, at := train, k
				if i == 9 {
					set, at = heldOut, 0
				} else {
					k++
				}
				x, label := load(t, set, at)
				if want := []int{2, 0, 1}[i%3]; label != want {
					t.Errorf("picture %d has label %d, want %d", i, label, want)
				}
				c := tileColor(i/3, i%3)
				n := size * size
				for ch, v := range []uint8{c.R, c.G, c.B} {
					if c.A != 255 {
						v = uint8(255 - (255-int(v))*int(c.A)/255)
					}
					for _, j := range []int{1, size, n - 2, n - 1 - size} {
						if got := x[ch*n+j]; got < unit(v)-1.0/100 || got > unit(v)+1.0/100 {
							t.Errorf("picture %d, channel %d, pixel %d: %v, want about %v", i, ch, j, got, unit(v))
						}
					}
					corner := float32(-1)
					if ch == 0 {
						corner = 1
					}
					if x[ch*n] != corner || x[ch*n+n-1] != 1 {
						t.Errorf("picture %d, channel %d: corners %v and %v, want %v and white", i, ch, x[ch*n], x[ch*n+n-1], corner)
					}
				}
			}
		})
	}
}

// TestEmojiLeftOut: entries without a picture, pictures that are there already
// and variations by skin tone do not come again.
func TestEmojiLeftOut(t *testing.T) {
	dir := t.TempDir()
	list := gridOf()[:6]
	list[1]["has_img_google"] = false
	list[1]["sheet_x"] = 99 // not looked at
	list[2]["skin_variations"] = emojiFields{"1F3FB": entry(3, 0, "")}
	list[2]["another_key"] = []int{1}
	again := entry(0, 0, "Flags")
	list = append(list, again, entry(4, 2, "Symbols"))
	writeEmoji(t, dir, 16, list...)
	train, heldOut := open(t, Options{Kind: "emoji", Path: dir, ImageSize: 16, Channels: 1})
	var labels []int
	for i := range train.Len() {
		_, label := load(t, train, i)
		labels = append(labels, label)
	}
	_, last := load(t, heldOut, 0)
	if got, want := fmt.Sprint(labels, last), "[2 1 2 0 1] 3"; got != want {
		t.Errorf("labels %s, want %s", got, want)
	}
}

// TestEmojiOfOtherSizes: the next larger sheet is resampled, or the largest.
func TestEmojiOfOtherSizes(t *testing.T) {
	for _, c := range []struct{ size, sheet int }{{8, 16}, {17, 20}, {24, 32}, {33, 64}, {70, 64}} {
		dir := t.TempDir()
		writeEmoji(t, dir, c.sheet, gridOf()...)
		train, _ := open(t, Options{Kind: "emoji", Path: dir, ImageSize: c.size, Channels: 3})
		x, _ := load(t, train, 4) // of column 1, row 1
		middle := c.size/2*c.size + c.size/2
		for ch, v := range []uint8{20, 30, 7} {
			if got := x[ch*c.size*c.size+middle]; got != unit(v) {
				t.Errorf("size %d, channel %d: %v in the middle, want %v", c.size, ch, got, unit(v))
			}
		}
	}
}

func TestBrokenEmojiPackages(t *testing.T) {
	good, err := json.Marshal(gridOf())
	must(t, err)
	without := func(key string) string {
		list := gridOf()
		delete(list[3], key)
		raw, err := json.Marshal(list)
		must(t, err)
		return string(raw)
	}
	sheet := func(w, h int) string { return string(encodePNG(t, image.NewNRGBA(image.Rect(0, 0, w, h)))) }
	for name, c := range map[string]struct {
		file, content string // of the package; an empty content removes the file
		want          []string
	}{
		"no list":      {"emoji.json", "", []string{"emoji.json", "no such file"}},
		"no JSON":      {"emoji.json", "emoji", []string{"emoji.json", "invalid character"}},
		"cut list":     {"emoji.json", string(good[:len(good)/2]), []string{"emoji.json", "unexpected end"}},
		"more":         {"emoji.json", string(good) + "[]", []string{"emoji.json", "after top-level value"}},
		"another type": {"emoji.json", strings.Replace(string(good), `"sheet_x":1`, `"sheet_x":1.5`, 1), []string{"emoji.json", "sheet_x"}},
		"no column":    {"emoji.json", without("sheet_x"), []string{"emoji.json", "entry 3", "AT 1 0", "sheet_x"}},
		"no row":       {"emoji.json", without("sheet_y"), []string{"entry 3", "sheet_y"}},
		"no category":  {"emoji.json", without("category"), []string{"entry 3", "category"}},
		"no flag":      {"emoji.json", without("has_img_google"), []string{"entry 3", "has_img_google"}},
		"right of it":  {"emoji.json", strings.Replace(string(good), `"sheet_x":4`, `"sheet_x":5`, 1), []string{"entry 12", "sheet_x = 5", "5x3"}},
		"below it":     {"emoji.json", strings.Replace(string(good), `"sheet_y":2`, `"sheet_y":-1`, 1), []string{"entry 2", "sheet_y = -1"}},
		"empty list":   {"emoji.json", "[]", []string{"0 distinct pictures", "at least 2"}},
		"no sheet":     {"img/google/sheets/16.png", "", []string{"16.png", "no such file"}},
		"no picture":   {"img/google/sheets/16.png", "sheet", []string{"16.png", "unknown format"}},
		"cut sheet":    {"img/google/sheets/16.png", sheet(90, 54)[:60], []string{"16.png", "not enough pixel data"}},
		"other grid":   {"img/google/sheets/16.png", sheet(90, 55), []string{"16.png", "90x55", "18x18"}},
		"empty sheet":  {"img/google/sheets/16.png", sheet(90, 54), []string{"1 distinct pictures", "at least 2"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			writeEmoji(t, dir, 16, gridOf()...)
			must(t, os.Remove(filepath.Join(dir, c.file)))
			if c.content != "" {
				write(t, dir, c.file, []byte(c.content))
			}
			_, _, err := Open(Options{Kind: "emoji", Path: dir, ImageSize: 16, Channels: 3})
			wantError(t, err, append(c.want, "data.path", dir, emojiCommand)...)
		})
	}
}

func TestEmojiPackageThatIsNotThere(t *testing.T) {
	for _, path := range []string{"", filepath.Join(t.TempDir(), "package")} {
		_, _, err := Open(Options{Kind: "emoji", Path: path, ImageSize: 32, Channels: 3})
		wantError(t, err, "data.path", path, emojiCommand)
	}
}

func TestEmojiOfOneCategory(t *testing.T) {
	dir := t.TempDir()
	writeEmoji(t, dir, 16, gridOf()...)
	o := Options{Kind: "emoji", Path: dir, ImageSize: 16, Channels: 3, Category: "Flags"}
	train, heldOut := open(t, o)
	if train.Len() != 4 || heldOut.Len() != 1 {
		t.Fatalf("%d and %d pictures, want 4 and 1", train.Len(), heldOut.Len())
	}
	for i := range 4 { // the second of every column
		x, label := load(t, train, i)
		if middle := 16*8 + 8; label != 0 || x[256+middle] != unit(30) {
			t.Errorf("picture %d has label %d and green %v in the middle: it is not the flag of its column", i, label, x[256+middle])
		}
	}
	o.Category = "Flag"
	_, _, err := Open(o)
	wantError(t, err, `data.category = "Flag"`, `"Flags" "Objects" "Smileys"`)
}
